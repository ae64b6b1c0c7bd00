/*
 * The ownership of one VIP among NODES nodes, as pkg/lease does it, for spin.
 *
 * What is modelled: the node leases (epoch, fenced, what a fence transfers) and the VIP lease (holder,
 * epoch) with their versions, as the API server keeps them; each node's cache,
 * which shows any state that has been, never an older one than before; a
 * process's own right (its tenure), which a fence ends when the node learns of
 * it; the fence by what is seen on the wire, which may be wrong; claims by
 * compare-and-swap; hand-over, by a write on the VIP lease or by a transfer on the owner's node lease, whose answer
 * may be lost; restart; a fence that transfers the VIP to the next node, which writes that
 * down later, or is passed over by another that writes its own claim.
 *
 * Time is left out but for one fact: a node that can't renew gives up before
 * anybody may fence it for its silence (renew deadline < lease duration). A fence for what is
 * seen on the wire waits for nothing.
 *
 * What must hold:
 *   - a node that is well informed (its cache shows the latest) never answers for a VIP
 *     whose lease names another, but for a hand-over;
 *   - nobody takes a VIP from a node whose claim is valid;
 *   - two nodes answer only while one of them has yet to read what is written already.
 *
 * check.sh runs it, and then with a mistake put in, which must be found.
 */
#ifndef NODES
#define NODES 2
#endif
#define NOBODY NODES

/* the API server */
byte epoch[NODES];      /* node lease: which life */
bool fenced[NODES];     /* node lease: that life is over */
byte holder = NOBODY;   /* VIP lease */
byte claim = 0;         /* VIP lease: the holder's epoch */
byte version = 0;       /* VIP lease */
byte moved[NODES];      /* node lease: the version of the VIP lease that a fence has transferred to the next node; 0: none */
byte moved_to[NODES];   /* node lease: that node's epoch */

/* what each node knows: its cache */
typedef View {
	byte epoch[NODES];
	bool fenced[NODES];
	byte holder;
	byte claim;
	byte version;
	byte moved[NODES];
	byte moved_to[NODES];
};
View view[NODES];

/* each process */
byte life[NODES];       /* the epoch it lives in; 0: it has none yet */
bool answers[NODES];    /* the VIP is bound there */
bool lingers[NODES];    /* only until its successor is heard */
bool reaches[NODES];    /* the API server */
byte doubt[NODES];      /* the version of the VIP lease that it has tried to transfer, and knows not whether it has; 0: none */

/* how far a run is followed */
#ifndef MAXEPOCH
#define MAXEPOCH 3
#endif
#ifndef MAXVERSION
#define MAXVERSION 5
#endif

/* the VIP lease, in the version that a view has, was transferred by the fence of its holder */
#define transferred(v) (v.holder != NOBODY && v.moved[v.holder % NODES] != 0 && v.moved[v.holder % NODES] == v.version)
/* who has it, in which epoch */
#define owner(v) (transferred(v) -> (v.holder + 1) % NODES : v.holder)
#define claim_of(v) (transferred(v) -> v.moved_to[v.holder % NODES] : v.claim)
/* the same, by what the API server has */
#define is_transferred (holder != NOBODY && moved[holder % NODES] != 0 && moved[holder % NODES] == version)
#define is_owner (is_transferred -> (holder + 1) % NODES : holder)
#define is_claim (is_transferred -> moved_to[holder % NODES] : claim)

/* what the API server says, read in one go */
inline refresh(me) {
	d_step {
		for (i : 0 .. NODES - 1) {
			view[me].epoch[i] = epoch[i];
			view[me].fenced[i] = fenced[i];
			view[me].moved[i] = moved[i];
			view[me].moved_to[i] = moved_to[i];
		}
		view[me].holder = holder;
		view[me].claim = claim;
		view[me].version = version;
		doubt[me] = 0;
		i = 0;
		/* and the agent's pass: what is not its own any more goes */
		if
		:: fenced[me] || epoch[me] != life[me] -> answers[me] = false; lingers[me] = false
		:: else ->
			if
			:: answers[me] && !lingers[me] && !(owner(view[me]) == me && claim_of(view[me]) == life[me]) -> answers[me] = false
			:: else -> skip
			fi
		fi
	}
}

/* the claim in a view is valid: its epoch is that of the holder's node lease, and not fenced */
#define valid(v, me) (v.holder != NOBODY && (owner(v) != me || claim_of(v) == life[me]) && claim_of(v) == v.epoch[owner(v) % NODES] && !v.fenced[owner(v) % NODES])
/* what the API server itself would say */
#define mine(me) (is_owner == me && is_claim == life[me] && is_claim == epoch[me] && !fenced[me])
/* the view is the latest of what matters to me */
#define fresh(me) (view[me].version == version && view[me].epoch[me] == epoch[me] && view[me].fenced[me] == fenced[me] && (holder == NOBODY || view[me].moved[holder % NODES] == moved[holder % NODES]))

proctype node(byte me) {
	byte i = 0;
	byte other;

	do
	/* the watch shows what there is; or not yet */
	:: reaches[me] -> refresh(me)

	/* it renews: a new life if the old is over; what is bound in the old goes first */
	:: atomic { reaches[me] && life[me] == 0 && epoch[me] < MAXEPOCH ->
		if
		:: fenced[me] || epoch[me] == 0 -> epoch[me]++; fenced[me] = false
		:: else -> skip  /* an earlier process of this node: its epoch is adopted */
		fi;
		life[me] = epoch[me] }
	:: atomic { reaches[me] && life[me] != 0 && (fenced[me] || epoch[me] != life[me]) ->
		answers[me] = false; lingers[me] = false; life[me] = 0 }
	/* it can't renew, and gives up */
	:: atomic { !reaches[me] && answers[me] -> answers[me] = false; lingers[me] = false; life[me] = 0 }

	/* the claim looks void: write it, on top of what was seen; or it was transferred, to this node, which writes that down, or to another, which is passed over */
	:: atomic { reaches[me] && life[me] != 0 && (!valid(view[me], me) || transferred(view[me])) && (doubt[me] == 0 || doubt[me] != view[me].version) && version < MAXVERSION ->
		if
		:: view[me].version == version && life[me] == epoch[me] && !fenced[me] ->
			assert(holder == NOBODY || holder == me || claim != epoch[holder] || fenced[holder] || is_transferred); /* taken from nobody who has it */
			holder = me; claim = life[me]; version++;
			view[me].holder = holder; view[me].claim = claim; view[me].version = version
		:: else -> skip  /* refused: another was faster */
		fi }

	/* the claim is mine as far as is known: bind */
	:: atomic { life[me] != 0 && owner(view[me]) == me && claim_of(view[me]) == life[me] && !view[me].fenced[me] && view[me].epoch[me] == life[me] && !answers[me] ->
		answers[me] = true; lingers[me] = false }
	/* a successor was named, and is heard */
	:: atomic { answers[me] && lingers[me] && (holder == NOBODY || holder == me || answers[holder]) -> answers[me] = false; lingers[me] = false }
	:: atomic { answers[me] && lingers[me] -> answers[me] = false; lingers[me] = false } /* the deadline */

	/* hand-over: the successor's name is written by the owner, on top of what it knows */
	:: atomic { reaches[me] && answers[me] && (mine(me) || doubt[me] != 0 && doubt[me] == version) && view[me].version == version && (doubt[me] == 0 || doubt[me] != version) && version < MAXVERSION ->
		assert(mine(me)); /* not what it has transferred already: that would end the transfer */
		other = (me + 1) % NODES;
		if
		:: view[me].epoch[other] != 0 && !view[me].fenced[other] && life[other] == view[me].epoch[other] ->
			holder = other; claim = view[me].epoch[other]; version++;
			view[me].holder = holder; view[me].claim = claim; view[me].version = version;
			lingers[me] = true
		:: else -> skip
		fi }

	/* hand-over by a transfer: the successor is written on its own node lease; the answer may be lost, and then it goes on, but writes no VIP lease in that version */
	:: atomic { NODES == 2 && reaches[me] && answers[me] && mine(me) && view[me].version == version && holder == me && doubt[me] == 0 ->
		other = (me + 1) % NODES;
		if
		:: view[me].epoch[other] != 0 && !view[me].fenced[other] && life[other] == view[me].epoch[other] ->
			moved[me] = version; moved_to[me] = view[me].epoch[other];
			if
			:: view[me].moved[me] = moved[me]; view[me].moved_to[me] = moved_to[me]; lingers[me] = true
			:: doubt[me] = version
			fi
		:: else -> skip
		fi }

	/* another is seen gone from the wire, rightly or not: fence its life, if the node lease
	   is still what was seen */
	:: atomic { reaches[me] && life[me] == epoch[me] && life[me] != 0 && !fenced[me] ->
		other = (me + 1) % NODES;
		if
		:: view[me].epoch[other] == epoch[other] && epoch[other] != 0 && !fenced[other] && view[me].moved[other] == moved[other] && view[me].moved_to[other] == moved_to[other] ->
			if
			:: NODES == 2 && view[me].holder == other && view[me].claim == epoch[other] && moved[other] != view[me].version -> /* with what it has */
				moved[other] = view[me].version; moved_to[other] = life[me]
			:: skip
			fi;
			fenced[other] = true; view[me].fenced[other] = true; view[me].moved[other] = moved[other]; view[me].moved_to[other] = moved_to[other]
		:: else -> skip
		fi }

	/* it is killed: its kernel drops the VIP by itself; another process starts */
	:: atomic { life[me] != 0 -> life[me] = 0; answers[me] = false; lingers[me] = false }
	od
}

/* the way to the API server comes and goes */
active proctype ways() {
	byte n = 0;
	do
	:: n < NODES -> atomic { reaches[n] = !reaches[n] }
	:: n = (n + 1) % NODES
	od
}

/* What must always hold. */
active proctype always() {
	byte a, b;
	end:
	do
	:: atomic {
		a = 0;
		do
		:: a < NODES ->
			/* whoever answers, waits for no successor, and knows the latest, owns it */
			assert(!(answers[a] && !lingers[a] && fresh(a)) || mine(a));
			b = a + 1;
			do
			:: b < NODES ->
				/* two at once: one lingers, or has yet to read that it lost its claim */
				assert(!(answers[a] && answers[b]) || lingers[a] || lingers[b] || !fresh(a) || !fresh(b) || !mine(a) || !mine(b));
				b++
			:: else -> break
			od;
			a++
		:: else -> break
		od;
		a = 0; b = 0 }
	od
}

init {
	atomic {
		byte n = 0;
		do
		:: n < NODES -> reaches[n] = true; view[n].holder = NOBODY; n++
		:: else -> break
		od;
		n = 0;
		do
		:: n < NODES -> run node(n); n++
		:: else -> break
		od
	}
}
