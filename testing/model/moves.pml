/*
 * The VIP of a node that is gone, without the API server, among NODES nodes (three, as written), as pkg/quorum and pkg/lease agree on it by heartbeats
 * (docs/ownership.md, "Without the API server"), for spin.
 *
 * What is modelled: whom a node finds alive, suspect or dead; voters by epoch, holders, state hash and proposal hash (as what they are digests of); proposals, which
 * may differ; the move, which each node carries out at a time of its own, or adopts; a node that gives up, yields, or confirms its claims after a pause; void claims in
 * heartbeats; the node leases and the VIP lease when the API server is back for some, fences, other epochs, processes that
 * start, moves that a node does not know of, and the write of what was moved.
 *
 * It begins when the API server is out of reach for all, and node 0 has the VIP, or with GONE has just died. Up to FAULTS things go wrong then, at any time, and end at any time: a process ends, or is
 * paused; a node is cut from the LAN; its heartbeat port is blocked; what one node says to another arrives late; a watch is stuck; a node loses the API server again, or plans otherwise than the others.
 * The API server comes back to each node, and a process that has ended starts, at any time. At some time all stays as it is, or is mended, and the nodes go on until nothing happens any more.
 *
 * Time: what takes milliseconds happens at once (settle): heartbeats, watches, renewals and plans, if nothing delays them. Whatever waits (tolerance, agreementTime, the renew deadline, a detection time)
 * may end at any moment. Three bounds are kept as an order of events:
 *   - who hears a node that reaches the API server yields before that fences it for silence, and who has no quorum gives up before (renew deadline < lease duration);
 *   - a node drops a move to another after that has dropped it (the renew deadline < the lease duration);
 *   - a process that starts hears each node that it can hear before it acts (meetTime).
 *
 * What must hold:
 *   - two nodes that hear each other never act on claims to the VIP at once, but while one of them has yet to hear or to read what has been said or written already, or has no
 *     quorum, which it may lack for tolerance;
 *   - when nothing happens any more, no two nodes act that hear each other;
 *   - nothing is moved that less than a majority of the voters has proposed;
 *   - once all is well again one node acts, and the VIP lease names it.
 *
 * Left out: kernels, which may answer for a while after a process ended or was paused (what acts here is processes); the gateway, which may stand for half of the voters; transfers, hand-overs
 * and lost answers (ownership.pml). Excused are the two sides of a LAN that is cut, and nodes that are not heard, until they hear each other and one yields (docs/ownership.md, "Limits that are known").
 *
 * check.sh runs it, and then with a mistake put in, which must be found.
 */
#ifndef NODES
#define NODES 3
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef MAXEPOCH
#define MAXEPOCH 3
#endif
#ifndef MAXVERSION
#define MAXVERSION 3
#endif
#define NONE 0 /* a node as a value is its number and one */

/* the API server */
byte lease[NODES];               /* node leases: twice the epoch, and one more if that is fenced */
byte version = 1;                /* of the VIP lease */
byte holder[MAXVERSION + 1];     /* the VIP lease, by version */
byte claim[MAXVERSION + 1];      /* the holder's epoch */

/* what a node has heard of another: its liveness, and its last heartbeat */
#define UNKNOWN 0
#define ALIVE 1
#define SUSPECT 2
#define DEAD 3
typedef Heard {
	byte liveness; byte epoch; bool api; bool acts;
	byte group; byte moved; byte proposal;   /* state hash: group and moved; proposal hash: group and proposal */
	bool unwritten;
	bool lags;                               /* what it says arrives later */
	bool known;                              /* a move to it, since it says that it acts on one */
	bool old                                 /* it came before a pause */
}
typedef Node {
	/* what happens to it */
	bool up; bool paused; bool reaches; bool stuck; bool cut; bool blocked; bool odd;
	/* its cache */
	byte lease[NODES]; byte version; byte shown; /* the epoch whose beginning it has shown */
	/* its process */
	byte life; bool over; bool late; bool ready;
	byte doubt;                              /* since it was paused: 1: not confirmed, 2: not for long */
	byte voter[NODES];                       /* epochs; 0: none */
	byte moved; byte replaces; byte epoch;   /* the Move: its holder, the version that it replaces, the holder's epoch */
	byte voids;                              /* claims that were moved to other nodes, two bits for the epoch of each node */
	byte proposal; byte agreed;
	bool bound;
	/* what follows from that: evaluate */
	byte group;                              /* the holders, two bits for the epoch of each */
	bool api; bool enough; bool moving; bool all; bool confirm; bool unknown;
	Heard heard[NODES]
}
Node n[NODES];
byte faults = 0;
bool calm = false;                /* nothing happens to any node any more */
bool apart = false;               /* a node was cut from the others, or not heard */
bool well = false;                /* and all is mended */

hidden byte i; hidden byte j; hidden byte count; hidden byte agree; hidden byte sure; hidden byte was; hidden byte ok; hidden byte k; hidden byte rounds; hidden byte again;

#define in(g, x) (((g) >> (2 * (x))) & 3)
#define with(g, x, e) ((g) | ((e) << (2 * (x))))
#define runs(a) (n[a].up && !n[a].paused)
#define hears(a, b) (runs(a) && runs(b) && n[a].cut == n[b].cut && !n[a].blocked && !n[b].blocked)
/* the heartbeat of a node */
#define holds(a) (n[a].life != 0 && !n[a].over)
#define acts(a) (holds(a) && (n[a].doubt == 0 || n[a].late && n[a].doubt == 1))
#define reaches(a) (holds(a) && !n[a].late)
#define sent(a) (n[a].moving -> n[a].proposal : NONE)
#define unwritten(a) (n[a].moved == a + 1)
/* it tells b that the claim of b is void */
#define voids(a, b) (n[a].heard[b].acts && n[a].heard[b].epoch != 0 && n[a].heard[b].epoch == n[b].life && !n[b].over && \
	(n[a].lease[b] > 2 * n[b].life || in(n[a].voids, b) == n[b].life))
#define current(a, b) (n[a].heard[b].liveness == ALIVE && n[a].heard[b].epoch == n[b].life && n[a].heard[b].api == reaches(b) && n[a].heard[b].acts == acts(b) && \
	n[a].heard[b].group == n[b].group && n[a].heard[b].moved == n[b].moved && n[a].heard[b].proposal == sent(b) && n[a].heard[b].unwritten == unwritten(b) && !n[a].heard[b].old)
/* the claim that the VIP lease names, as a node knows it */
#define named(a) holder[n[a].version]
#define named_epoch(a) claim[n[a].version]
#define void(a, b, e) (a == b -> e != n[a].life || n[a].over : n[a].lease[b] > 2 * (e))
#define released(a, b) (n[a].moving && a != b && n[a].voter[b] != 0 && (n[a].heard[b].liveness == DEAD && n[a].heard[b].epoch >= n[a].lease[b] / 2 || \
	n[a].heard[b].liveness == ALIVE && !n[a].heard[b].acts))
/* its claim on the VIP, of whichever node, is valid */
#define valid(a) (n[a].moved != NONE -> !void(a, (n[a].moved - 1), n[a].epoch) && !released(a, (n[a].moved - 1)) : \
	!void(a, named(a), named_epoch(a)) && !released(a, named(a)))
/* it has the right to the VIP */
#define right(a) (runs(a) && holds(a) && n[a].ready && n[a].doubt == 0 && \
	(n[a].moved != NONE -> n[a].moved == a + 1 && n[a].epoch == n[a].life : named(a) == a && named_epoch(a) == n[a].life))
#define serves(a) (n[a].bound && right(a))

/* a node that can be asked, answers for the VIP, and is neither heard nor dead: nobody binds beside it (decision 0120) */
#define beside(a, b) (a != b && n[b].bound && n[a].cut == n[b].cut && n[a].heard[b].liveness == SUSPECT)

/* what another says is late, which acted without the API server when it was last heard (Decision.PossibleMoves) */
#define overdue(a, b) (n[a].heard[b].lags && n[a].heard[b].liveness == ALIVE && n[a].heard[b].acts && !n[a].heard[b].api)
#define possible(a) (overdue(a, 0) || overdue(a, 1) || overdue(a, NODES - 1))
#define bad (!calm && faults < FAULTS)
/* it has heard whom it can hear */
#define heardOf(a, b) (a == b || !hears(a, b) || n[a].heard[b].liveness != UNKNOWN)
#define met(a) (heardOf(a, 0) && heardOf(a, 1) && heardOf(a, NODES - 1))
/* the first of the holders, or the last */
#define first(g) (in(g, 0) != 0 -> 1 : (in(g, 1) != 0 -> 2 : (in(g, 2) != 0 -> 3 : NODES)))
#define last(g) (in(g, NODES - 1) != 0 -> NODES : (in(g, NODES - 2) != 0 -> NODES - 1 : (in(g, NODES - 3) != 0 -> NODES - 2 : 1)))
#define plan(a) (n[a].odd -> last(n[a].group) : first(n[a].group))

inline carryOut(a, next) {
	n[a].voids = n[a].voids & ~(3 << (2 * named(a)));
	if
	:: named(a) != next - 1 -> n[a].voids = with(n[a].voids, named(a), named_epoch(a))
	:: else -> skip
	fi;
	if
	:: n[a].moved != NONE && n[a].moved != next -> n[a].voids = with(n[a].voids, n[a].moved - 1, n[a].epoch)
	:: else -> skip
	fi;
	n[a].moved = next; n[a].replaces = n[a].version; n[a].epoch = n[a].voter[next - 1];
	n[a].proposal = NONE; n[a].agreed = NONE
}

/* the holders, and who agrees */
inline findHolders(a) {
	n[a].group = 0; n[a].api = false; agree = 0; sure = 1; count = 0; n[a].all = true; ok = false;
	if
	:: acts(a) -> n[a].group = with(0, a, n[a].voter[a])
	:: else -> skip
	fi;
	for (j : 0 .. NODES - 1) {
		if
		:: n[a].voter[j] != 0 -> count++
		:: else -> skip
		fi;
		if
		:: j != a && n[a].heard[j].liveness == ALIVE ->
			n[a].api = n[a].api || n[a].heard[j].api;
			if
			:: n[a].voter[j] != 0 && n[a].heard[j].acts && n[a].heard[j].epoch == n[a].voter[j] -> n[a].group = with(n[a].group, j, n[a].voter[j])
			:: else -> skip
			fi
		:: else -> skip
		fi
	}
	for (j : 0 .. NODES - 1) {
		if
		:: j == a && in(n[a].group, j) != 0 -> agree++
		:: j != a && in(n[a].group, j) != 0 ->
			if
			:: n[a].heard[j].group == n[a].group && n[a].heard[j].moved == n[a].moved ->
				agree++;
				sure = sure + (1 - n[a].heard[j].old);
				n[a].all = n[a].all && n[a].heard[j].proposal == n[a].proposal
			:: else ->
				ok = ok || n[a].heard[j].group == n[a].group && n[a].agreed != NONE && n[a].heard[j].moved == n[a].agreed;
				if
				:: n[a].proposal != NONE && n[a].heard[j].group == n[a].group && n[a].heard[j].moved == n[a].proposal -> agree++
				:: else -> n[a].all = false
				fi
			fi
		:: else -> skip
		fi
	}
	n[a].enough = 2 * agree > count;
	n[a].confirm = in(n[a].group, a) != 0 && 2 * sure > count
}

inline evaluate(a) {
	if
	:: !n[a].late ->
		for (j : 0 .. NODES - 1) {
			n[a].voter[j] = (j == a -> n[a].life : (n[a].lease[j] % 2 == 0 -> n[a].lease[j] / 2 : 0))
		}
	:: else -> skip
	fi;
	if
	:: n[a].moved != NONE && (n[a].over || n[a].version != n[a].replaces) -> n[a].moved = NONE; n[a].voids = 0; n[a].replaces = 0; n[a].epoch = 0
	:: else -> skip
	fi;
	findHolders(a);
	if
	:: !n[a].late || n[a].over || n[a].api -> n[a].agreed = NONE
	:: else -> skip
	fi;
	was = n[a].moving;
	n[a].moving = n[a].late && holds(a) && !n[a].api && n[a].enough;
	if
	:: was != n[a].moving || !n[a].moving -> n[a].proposal = NONE
	:: else -> skip
	fi;
	if
	:: ok && n[a].agreed != NONE -> carryOut(a, n[a].agreed)     /* adoptMoves */
	:: else -> skip
	fi;
	findHolders(a);
	if
	:: n[a].moving && n[a].proposal != NONE && n[a].all -> n[a].agreed = n[a].proposal
	:: else -> n[a].all = false
	fi;
	n[a].unknown = false;
	for (j : 0 .. NODES - 1) {
		n[a].heard[j].known = j != a && n[a].heard[j].liveness == ALIVE && n[a].heard[j].unwritten && !n[a].over && (n[a].heard[j].known || n[a].moved == j + 1);
		n[a].unknown = n[a].unknown || j != a && n[a].heard[j].liveness == ALIVE && n[a].heard[j].unwritten && !n[a].heard[j].known
	}
	if
	:: !right(a) -> n[a].bound = false
	:: else -> skip
	fi;
	j = 0
}

/* what a process knows goes with it */
inline forget(a) {
	for (j : 0 .. NODES - 1) {
		n[a].heard[j].liveness = UNKNOWN; n[a].heard[j].epoch = 0; n[a].heard[j].api = false; n[a].heard[j].acts = false; n[a].heard[j].group = 0;
		n[a].heard[j].moved = NONE; n[a].heard[j].proposal = NONE; n[a].heard[j].unwritten = false; n[a].heard[j].known = false; n[a].heard[j].old = false; n[a].heard[j].lags = false;
		n[a].voter[j] = 0; n[a].lease[j] = 0
	}
	n[a].version = 1; n[a].shown = 0; n[a].life = 0; n[a].over = false; n[a].late = false; n[a].ready = false; n[a].doubt = 0; n[a].odd = false;
	n[a].moved = NONE; n[a].replaces = 0; n[a].epoch = 0; n[a].voids = 0; n[a].proposal = NONE; n[a].agreed = NONE; n[a].bound = false;
	n[a].group = 0; n[a].api = false; n[a].enough = false; n[a].moving = false; n[a].all = false; n[a].confirm = false; n[a].unknown = false
}

/* all that happens at once, in whatever order: nodes renew, see what is written, hear each other, plan and bind, unless something delays it */
inline settle() {
	again = true; rounds = 0;
	do
	:: again ->
		again = false; rounds++;
		assert(rounds < 20);
		for (i : 0 .. NODES - 1) {
			if
			:: runs(i) ->
				/* its renewal is late; or it renews: another epoch if its own is over, or an earlier process was fenced */
				if
				:: !n[i].reaches && n[i].life != 0 && !n[i].late -> n[i].late = true; again = true
				:: n[i].reaches && (n[i].late || n[i].life == 0 || n[i].over || n[i].doubt != 0 || lease[i] != 2 * n[i].life) && lease[i] / 2 < MAXEPOCH ->
					again = true;
					if
					:: lease[i] % 2 == 1 -> lease[i]++
					:: lease[i] % 2 == 0 && n[i].over -> lease[i] = lease[i] + 2
					:: else -> skip
					fi;
					n[i].late = false; n[i].doubt = 0; n[i].lease[i] = lease[i];
					if
					:: n[i].life != lease[i] / 2 ->
						n[i].over = true; evaluate(i);
						n[i].over = false; n[i].life = lease[i] / 2; n[i].ready = false
					:: else -> skip
					fi
				:: else -> skip
				fi;
				/* its cache shows what there is */
				if
				:: n[i].reaches && !n[i].stuck && (n[i].version != version || n[i].lease[0] != lease[0] || n[i].lease[1] != lease[1] || n[i].lease[NODES - 1] != lease[NODES - 1]) ->
					again = true;
					for (j : 0 .. NODES - 1) {
						n[i].lease[j] = lease[j]
					}
					n[i].version = version; n[i].shown = n[i].life;
					if
					:: n[i].life != 0 && lease[i] > 2 * n[i].life -> n[i].over = true
					:: else -> skip
					fi
				:: n[i].reaches && !n[i].stuck -> n[i].shown = n[i].life
				:: else -> skip
				fi;
				/* heartbeats arrive */
				for (k : 0 .. NODES - 1) {
					if
					:: i != k && hears(i, k) && !n[i].heard[k].lags && (!current(i, k) || voids(k, i)) ->
						again = true;
						if
						:: voids(k, i) -> n[i].over = true
						:: else -> skip
						fi;
						n[i].heard[k].liveness = ALIVE; n[i].heard[k].epoch = n[k].life; n[i].heard[k].api = reaches(k); n[i].heard[k].acts = acts(k);
						n[i].heard[k].group = n[k].group; n[i].heard[k].moved = n[k].moved; n[i].heard[k].proposal = sent(k); n[i].heard[k].unwritten = unwritten(k);
						n[i].heard[k].old = false
					:: else -> skip
					fi
				}
				evaluate(i);
				/* it may act: it has heard the others, and knows of what was moved */
				if
				:: holds(i) && !n[i].ready && !n[i].unknown && n[i].shown == n[i].life && met(i) -> n[i].ready = true; again = true
				:: else -> skip
				fi;
				/* it plans: where the VIP goes, if nobody has it */
				if
				:: n[i].moving && !valid(i) && n[i].proposal != plan(i) -> n[i].proposal = plan(i); again = true; evaluate(i)
				:: n[i].moving && valid(i) && n[i].proposal != NONE -> n[i].proposal = NONE; again = true; evaluate(i)
				:: else -> skip
				fi;
				/* it binds the VIP */
				if
				:: right(i) && !n[i].bound && !beside(i, (i + 1) % NODES) && !beside(i, (i + 2) % NODES) -> n[i].bound = true
				:: else -> skip
				fi
			:: else -> skip
			fi
		}
	:: else -> break
	od;
	i = 0; j = 0; k = 0
}

/* what a node does with regard to another */
proctype pair(byte a; byte b) {
	end:
	do
	:: atomic {
		if
		/* no heartbeat arrives any more: nothing of it answers, or its kernel does */
		:: d_step { runs(a) && (!n[b].up || n[a].cut != n[b].cut) && (n[a].heard[b].liveness == ALIVE || n[a].heard[b].liveness == SUSPECT) -> n[a].heard[b].liveness = DEAD }
		:: d_step { runs(a) && n[b].up && n[a].cut == n[b].cut && !hears(a, b) && n[a].heard[b].liveness == ALIVE -> n[a].heard[b].liveness = SUSPECT }
		/* it fences the other: that is dead, or has yielded, or its lease was silent */
		:: d_step { runs(a) && n[a].reaches && reaches(a) && n[a].lease[b] == lease[b] && lease[b] % 2 == 0 && lease[b] != 0 &&
			(n[a].heard[b].liveness == DEAD && n[a].heard[b].epoch >= lease[b] / 2 ||
			 n[a].heard[b].liveness == ALIVE && n[a].heard[b].epoch == lease[b] / 2 && !n[a].heard[b].acts && !n[a].heard[b].api ||
			 !(n[b].reaches && runs(b)) && (!runs(b) || !holds(b) || !hears(b, a) && n[b].late && n[b].enough)) -> lease[b]++; n[a].lease[b] = lease[b] }
		/* what it says arrives late */
		:: d_step { bad && hears(a, b) && !n[a].heard[b].lags -> n[a].heard[b].lags = true; faults++ }
		:: d_step { !calm && n[a].heard[b].lags -> n[a].heard[b].lags = false }
		fi;
		d_step { settle() } }
	od
}

proctype node(byte a) {
	end:
	do
	:: atomic {
		if
		/* without the API server, and without a quorum; or others reach it */
		:: d_step { runs(a) && n[a].late && holds(a) && (!n[a].enough || n[a].api) -> n[a].over = true }
		/* after a pause the others confirm that it has what it had; or they do not */
		:: d_step { runs(a) && n[a].doubt == 1 && n[a].late && holds(a) && !n[a].api && n[a].confirm -> n[a].doubt = 0 }
		:: d_step { runs(a) && n[a].doubt == 1 -> n[a].doubt = 2 }
		/* all holders have agreed for a while: it carries out the move */
		:: d_step { runs(a) && n[a].moving && n[a].proposal != NONE && n[a].all ->
			count = 0; agree = 0;
			for (j : 0 .. NODES - 1) {
				count = count + (n[a].voter[j] != 0);
				agree = agree + (in(n[a].group, j) != 0 && (j == a || n[a].heard[j].proposal == n[a].proposal || n[a].heard[j].moved == n[a].proposal))
			}
			assert(2 * agree > count); /* nothing is moved that less than a majority has proposed */
			carryOut(a, n[a].proposal) }
		/* a move that nobody has written is dropped, by its holder first */
		:: d_step { runs(a) && n[a].reaches && reaches(a) && n[a].moved != NONE && (n[a].moved == a + 1 || !(n[n[a].moved - 1].moved == n[a].moved && holds(n[a].moved - 1))) ->
			n[a].moved = NONE; n[a].voids = 0; n[a].replaces = 0; n[a].epoch = 0 }
		/* the VIP is free, or its own by a move: it writes its claim, on top of what it knows */
		:: d_step { runs(a) && n[a].reaches && reaches(a) && n[a].doubt == 0 && n[a].ready && !n[a].unknown && !possible(a) && n[a].version == version && void(a, named(a), named_epoch(a)) &&
			(n[a].moved == NONE || n[a].moved == a + 1 || void(a, (n[a].moved - 1), n[a].epoch)) && version < MAXVERSION ->
			version++; holder[version] = a; claim[version] = n[a].life;
			n[a].version = version }
		fi;
		d_step { settle() } }
	od
}

/* what happens to a node: at most FAULTS of what is bad, and its end at any time */
inline resume(x) {
	n[x].paused = false; n[x].doubt = (holds(x) -> 1 : 0);
	for (j : 0 .. NODES - 1) {
		n[x].heard[j].old = j != x && n[x].heard[j].liveness != UNKNOWN
	}
	j = 0
}
proctype fate(byte a) {
	end:
	do
	:: atomic {
		if
		:: d_step { !calm && !n[a].reaches -> n[a].reaches = true }
		:: d_step { bad && n[a].reaches -> n[a].reaches = false; faults++ }
		:: d_step { bad && !n[a].stuck -> n[a].stuck = true; faults++ }
		:: d_step { !calm && n[a].stuck -> n[a].stuck = false }
		:: d_step { bad && !n[a].cut -> n[a].cut = true; apart = true; faults++ }
		:: d_step { !calm && n[a].cut -> n[a].cut = false }
		:: d_step { bad && !n[a].blocked -> n[a].blocked = true; apart = true; faults++ }
		:: d_step { !calm && n[a].blocked -> n[a].blocked = false }
		:: d_step { bad && runs(a) -> n[a].paused = true; n[a].bound = false; faults++ }
		:: d_step { !calm && n[a].paused -> resume(a) }
		:: d_step { bad && n[a].up -> forget(a); n[a].up = false; n[a].paused = false; faults++ }
		:: d_step { !calm && !n[a].up -> n[a].up = true }
		:: d_step { bad && runs(a) && !n[a].odd -> n[a].odd = true; faults++ }
		fi;
		d_step { settle() } }
	od
}
/* whoever serves knows all that was said and written, and has a quorum without the API server */
#define told(a, b) (a == b || !hears(a, b) || current(a, b) && !voids(b, a))
#define knows(a) (told(a, 0) && told(a, 1) && told(a, NODES - 1) && (n[a].late -> n[a].enough && !(n[a].api && apart) : \
	n[a].version == version && n[a].lease[0] == lease[0] && n[a].lease[1] == lease[1] && n[a].lease[NODES - 1] == lease[NODES - 1]))
#define two(a, b) (hears(a, b) && serves(a) && serves(b))
#define bounds (version == MAXVERSION || lease[0] / 2 == MAXEPOCH || lease[1] / 2 == MAXEPOCH || lease[NODES - 1] / 2 == MAXEPOCH)

proctype always() {
	end:
	do
	/* then all stays as it is, or is mended */
	:: atomic { !calm -> calm = true;
		if
		:: d_step { well = true;
			for (i : 0 .. NODES - 1) {
				n[i].reaches = true; n[i].stuck = false; n[i].cut = false; n[i].blocked = false; n[i].up = true; n[i].odd = false;
				if
				:: n[i].paused -> resume(i)
				:: else -> skip
				fi
			}
			i = 0 }
		:: skip
		fi;
		d_step {
			for (i : 0 .. NODES - 1) {
				for (j : 0 .. NODES - 1) {
					n[i].heard[j].lags = false
				}
			}
			settle()
		} }
	/* What must always hold. */
	:: d_step { two(0, 1) && knows(0) && knows(1) || two(1, NODES - 1) && knows(1) && knows(NODES - 1) || two(0, NODES - 1) && knows(0) && knows(NODES - 1) -> assert(false) }
	/* What must hold when nothing happens any more. */
	:: timeout ->
		assert(!two(0, 1) && !two(1, NODES - 1) && !two(0, NODES - 1));
		assert(!well || bounds || serves(holder[version]) && claim[version] == n[holder[version]].life);
		break
	od
}

init {
	d_step {
		holder[1] = 0; claim[1] = 1;
		for (i : 0 .. NODES - 1) {
			lease[i] = 2;
			n[i].up = true; n[i].life = 1; n[i].late = true; n[i].ready = true; n[i].version = 1; n[i].shown = 1;
			for (j : 0 .. NODES - 1) {
				n[i].group = with(n[i].group, j, 1); n[i].lease[j] = 2; n[i].voter[j] = 1
			}
		}
		for (i : 0 .. NODES - 1) {
			for (j : 0 .. NODES - 1) {
				if
				:: i != j -> n[i].heard[j].liveness = ALIVE; n[i].heard[j].epoch = 1; n[i].heard[j].acts = true; n[i].heard[j].group = n[i].group
				:: else -> skip
				fi
			}
		}
		n[0].bound = true;
#ifdef GONE
		forget(0); n[0].up = false;
#endif
		i = 0
	}
	d_step {
		settle()
	}
	atomic {
		run always();
		for (i : 0 .. NODES - 1) {
			run node(i); run fate(i);
			for (j : 0 .. NODES - 1) {
				if
				:: i != j -> run pair(i, j)
				:: else -> skip
				fi
			}
		}
		i = 0; j = 0
	}
}
