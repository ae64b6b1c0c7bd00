/*
 * One unit of the table and three nodes, by the rules of docs/ownership.md, for spin (check.sh).
 *
 * What a node may do, and does, is in C below; when, is in the process at the end. Time is ticks of 5 s: the renew deadline is 2 of them, the lease
 * duration 3, an address lives for 1 or 2. What must be done is done at any moment before the next tick, so that all may overtake each other. One
 * node is slow: its watch and its renewals come at any moment, too; those of the others come at once, and so do heartbeats and what agents do.
 *
 * It must hold that (check, tick, checkFree): no two nodes have the unit that clients could both reach; no write takes it from a claim that is not
 * void; no kernel answers beside one that has lost the unit; who gives it away answers until its heir does; and it is answered within six ticks.
 *
 * Left to tests on simulated time: late heartbeats, keepers in turn, fences that a renewal overtakes, stuck watches that begin again, processes
 * that hang as a whole, isolated nodes, who counts as one of the group when some are back, the gateway of two nodes, a deleted or restored table, deleted node leases, several units, kube-vip.
 *
 * Left out, too, are what leftOut says; a write of an ended process that arrives when the next one acts; and that an heir which has read the
 * table past its watch, has not seen the fence, and hears the old owner, does not ask its kernel.
 */
#define NODES 3
#define NOBODY 3
#define TABLES 5 /* the run ends with this number */
#define EPOCHS 3
#define AND(x) x,
#define CALLED(x) if (!strcmp(name, #x)) mistake = x;
#define MISTAKES(m) m(noCompare) m(notRead) m(releasedEarly) m(noDoubt) m(readEndsDoubt) m(givenBackInVain) m(kernelNotAsked) m(staleClaim) \
	m(fencedEarly) m(noDeadline) m(epochsNotCompared) m(voidNotTold) m(minority) m(unequal) m(moveInAnyTable) m(movesWithoutFence) m(unknownMoves) \
	m(notFollowed) m(unheardVoters) m(moveOvertaken)

/* the API server: each table by its number, and node leases, which are twice the epoch, and one more if that is over */
byte number = 1, owner[TABLES + 2], epoch[TABLES + 2], since[TABLES + 2], writer[TABLES + 2];
byte lease[NODES];
byte lateBase, lateOwner, lateEpoch, lateWriter; /* a write that arrives late, or never */

typedef Node {
	bool up, reach, cut, blocked, hung; /* its process; the API server; cut from the VIPs' link; its heartbeats are; its agent */
	byte clock;                    /* ticks since it has begun to renew, or has ceased to; 3 at most */
	byte life; bool over;          /* its epoch; that has ended */
	byte acts;                     /* 0: a new process; 1: it has not read the table in its epoch; 2: it has */
	byte seen; byte leases[NODES]; /* what it has seen of the API server */
	byte sure;                     /* the table that it had when it last knew of all moves */
	byte moved, movedIn, replaces; /* a move without the API server: to whom (+1), in which epoch, in place of which entry */
	byte proposal;                 /* to whom (+1) */
	byte doubt;                    /* it has given the unit away by a write over this table, and had no answer */
	byte next;                     /* to whom (+1) it hands over */
	byte answers                   /* for how many ticks its kernel does */
}
Node n[NODES];
byte slow, faults, gifts;
byte silence; /* ticks without an answer */
byte wrong;   /* what must not be */
bool ended;   /* the rest is left out */
bool hurt;    /* more went wrong than an answer that was lost */

c_decl {
	enum { none, MISTAKES(AND) };
	enum { fine, takenFromAnOwner, notAnswered, nobody, twoOwners, twoKernels, ownedInVain }; /* wrong */
	static int mistake, maxFaults, maxGifts, away; /* options: how much goes wrong; how often it is given away, or another unit is */
}

c_code {
#define N now.n
#define EACH(b) (int b = 0; b < NODES; b++)
static int active(int l) { return l && l % 2 == 0; }
static int renews(int a) { return N[a].up && N[a].reach; }
static int linked(int a, int b) { return a == b || !N[a].cut && !N[b].cut; }
static int hears(int a, int b) { return a != b && N[a].up && N[b].up && linked(a, b) && !N[a].blocked && !N[b].blocked; }
static int dead(int a, int b) { return !linked(a, b) || !N[b].up; }
static int lives(int a) { return N[a].up && N[a].life && !N[a].over; }

/* the unit, as a sees it */
static int ownerOf(int a) { return N[a].moved ? N[a].moved - 1 : now.owner[N[a].seen]; }
static int epochOf(int a) { return N[a].moved ? N[a].movedIn : now.epoch[N[a].seen]; }
static int isVoid(int a, int o, int e) {
	if (mistake == epochsNotCompared && o != NOBODY) return o != a && N[a].leases[o] % 2;
	return o == NOBODY ? 1 : o == a ? N[a].over || e != N[a].life : N[a].leases[o] > 2 * e;
}
static int movedFrom(int a, int b) {
	return N[a].moved && now.owner[N[a].replaces] == b && now.epoch[N[a].replaces] == N[b].life && N[a].moved != b + 1;
}
static int told(int a) { /* by heartbeats, that its epoch is void */
	int is = 0;
	for EACH(b) is |= hears(a, b) && N[a].life && (N[b].leases[a] > 2 * N[a].life || movedFrom(b, a));
	return is && mistake != voidNotTold;
}
static int begins(int a) { return N[a].moved || now.since[N[a].seen] <= N[a].sure || mistake == moveOvertaken; }
static int right(int a) {
	return lives(a) && N[a].acts == 2 && !N[a].doubt && ownerOf(a) == a && !isVoid(a, a, epochOf(a)) && !told(a) && begins(a);
}
static int handsOver(int a) { return N[a].next && lives(a) && (mistake == givenBackInVain || !right(a)); }

/* without the API server: who acts, as a sees it, and agrees with it */
static int voter(int a, int b) { return active(N[a].leases[b]) || hears(a, b) && lives(b) && 2 * N[b].life > N[a].leases[b] && mistake != unheardVoters; }
static int holds(int a, int b) { return voter(a, b) && lives(b) && (a == b || hears(a, b) && 2 * N[b].life >= N[a].leases[b]); }
static int holders(int a) { return holds(a, 0) + 2 * holds(a, 1) + 4 * holds(a, 2); }
static int voters(int a) { return voter(a, 0) + voter(a, 1) + voter(a, 2); }
static int enough(int a) {
	int agree = 0;
	for EACH(b) agree += holds(a, b) && holders(a) == holders(b) && (N[b].moved == N[a].moved || N[a].proposal && N[b].moved == N[a].proposal);
	return 2 * agree > voters(a) || mistake == minority;
}
static int hearsAPI(int a, int clock) { for EACH(b) if (hears(a, b) && lives(b) && N[b].reach && N[b].clock >= clock) return 1; return 0; }
static int moving(int a) { return lives(a) && N[a].acts == 2 && !N[a].reach && N[a].clock && !hearsAPI(a, 0) && enough(a); }
static int lost(int a) {
	int o = ownerOf(a);
	return isVoid(a, o, epochOf(a)) || o != a && active(N[a].leases[o]) && (dead(a, o) || hears(a, o) && !lives(o));
}
static int mustGiveUp(int a) { return mistake != noDeadline && lives(a) && !N[a].reach && N[a].clock && (!enough(a) || hearsAPI(a, 1)); }
static int unknown(int a) { /* another acts on a move that a does not know */
	for EACH(b) if (N[b].moved == b + 1 && N[a].moved != b + 1 && mistake != unknownMoves)
		if (hears(a, b) || linked(a, b) && mustGiveUp(b)) return 1; /* or may, as it is late */
	return 0;
}
static int reachesMost(int a) {
	int reached = 0;
	for EACH(b) reached += active(N[a].leases[b]) && linked(a, b);
	return 2 * reached > voters(a);
}
static int alive(int a, int b) { return a == b || active(N[a].leases[b]) && N[b].up && (N[a].cut || !N[b].cut); } /* for who is cut off, by leases */
static int mayWrite(int a) {
	return lives(a) && N[a].acts == 2 && N[a].reach && now.number < TABLES && (N[a].seen == now.number || mistake == noCompare);
}

/* it takes in a table: a higher number ends a doubt */
static void endMove(int a) { N[a].moved = N[a].movedIn = N[a].replaces = 0; }
static void take(int a, int number) {
	int o = now.owner[number];
	if (number <= N[a].seen) return;
	N[a].seen = number;
	if (N[a].doubt && number > N[a].doubt) { N[a].doubt = 0; N[a].next = o == a ? 0 : o + 1; }
}
static void endEpoch(int a) { N[a].over = 1; N[a].proposal = 0; endMove(a); }
static void send(int a, int to, int e) {
	int before = now.number++;
	now.owner[now.number] = to; now.epoch[now.number] = e; now.writer[now.number] = a;
	now.since[now.number] = now.owner[before] == to && now.epoch[before] == e ? now.since[before] : now.number;
}
static void checkFree() { if (now.lease[now.owner[now.number]] <= 2 * now.epoch[now.number]) now.wrong = takenFromAnOwner; }
static void put(int a, int to, int e) { send(a, to, e); take(a, now.number); }

/* what a node does without a choice */
static int mustLook(int a) {
	for EACH(b) if (renews(a) && N[a].leases[b] != now.lease[b]) return 1;
	return 0;
}
static int look(int a) {
	if (!mustLook(a)) return 0;
	for EACH(b) N[a].leases[b] = now.lease[b];
	if (lives(a) && now.lease[a] > 2 * N[a].life) endEpoch(a);
	return 1;
}
static int renew(int a) {
	if (!renews(a) || N[a].life && !N[a].over && now.lease[a] == 2 * N[a].life || now.lease[a] >= 2 * EPOCHS) return 0;
	look(a); /* a process has listed node leases before */
	if (now.lease[a] % 2) now.lease[a]++;
	else if (N[a].over && now.lease[a] == 2 * N[a].life) now.lease[a] += 2;
	if (N[a].life && 2 * N[a].life != now.lease[a]) { endEpoch(a); N[a].acts = 1; }
	N[a].life = now.lease[a] / 2; N[a].over = 0; N[a].leases[a] = now.lease[a];
	if (mistake == notRead) N[a].acts = 2;
	return 1;
}
static int mustRead(int a) { return lives(a) && N[a].reach && N[a].acts < 2 && (N[a].acts || !unknown(a)); }
static int readTable(int a) { return mustRead(a) ? take(a, now.number), N[a].acts = 2 : 0; }
static int watch(int a) { return renews(a) && N[a].seen < now.number ? take(a, now.number), look(a), 1 : look(a); } /* it shows all in order */
static int list(int a) { return renews(a) && !N[a].seen && now.number > 1 ? take(a, now.number - 1), 1 : 0; } /* of a new process, may be old */
static int ask(int a) { /* it hears of a higher number, and reads the table past its watch */
	if (lives(a) && N[a].reach && N[a].acts == 2) for EACH(b) if (hears(a, b) && N[b].seen > N[a].seen) return take(a, now.number), 1;
	return 0;
}
static int resolve(int a) { /* a number that it hears ends a doubt */
	int heard = 0, d = N[a].doubt;
	for EACH(b) if (hears(a, b) && N[b].seen > heard) heard = N[b].seen;
	if (!d || heard <= d) return 0;
	if (now.writer[d + 1] == a) { take(a, d + 1); return 1; }
	if (heard > d + 1) return 0;
	return N[a].doubt = N[a].next = 0, 1;
}
static int agent(int a) { return N[a].up && !N[a].hung && N[a].acts; }
static int unbind(int a) {
	int heir = N[a].next - 1;
	if (!agent(a) || !N[a].answers) return 0;
	if (handsOver(a) ? mistake != releasedEarly && !(N[heir].answers && linked(a, heir) && !handsOver(heir)) : right(a)) return 0;
	return N[a].answers = 0, 1;
}
static int mustWait(int a) { /* it asks the kernels of nodes that have lost an epoch, or are not heard */
	for EACH(b) if (b != a && linked(a, b) && N[b].answers && (N[a].leases[b] > 2 || N[a].moved || !hears(a, b)))
		return N[a].leases[b] > 2 ? 2 : 1;
	return 0;
}
static int bind(int a) {
	if (!agent(a) || !right(a) || handsOver(a) || N[a].answers || mustWait(a) && mistake != kernelNotAsked) return 0;
	if (mustWait(a) == 2) now.wrong = twoKernels;
	return N[a].answers = 2;
}
static int hear(int a) { return lives(a) && told(a) ? endEpoch(a), 1 : 0; }
static int dropProposal(int a) { return N[a].proposal && !(moving(a) && lost(a) && holds(a, N[a].proposal - 1)) ? N[a].proposal = 0, 1 : 0; }
static int endOvertaken(int a) { /* a move that the table has overtaken, once its holder does not act on it */
	int holder = N[a].moved - 1;
	if (!N[a].moved || now.since[N[a].seen] == N[a].replaces || mistake == moveInAnyTable) return 0;
	if (holder != a && hears(a, holder) && N[holder].moved == holder + 1) return 0;
	return endMove(a), 1;
}
static int know(int a) { return N[a].sure != N[a].seen && !unknown(a) ? N[a].sure = N[a].seen, 1 : 0; }
static int step(int a) { return renew(a) || readTable(a) || watch(a); }
static int can(int (*f)(int), int a) {
	State before = now;
	int did = f(a);
	return now = before, did;
}
static void settle() {
	for (int again = 1; again; ) {
		again = 0;
		for EACH(a) again |= hear(a) || resolve(a) || endOvertaken(a) || know(a) || dropProposal(a) || a != now.slow && step(a) || unbind(a) || bind(a);
	}
}

/* what it chooses, or when */
static int mayGive(int a, int b) {
	return a != b && now.gifts < maxGifts && mayWrite(a) && right(a) && alive(a, b) && (!N[a].moved || mistake == moveInAnyTable) &&
		!N[a].hung && N[a].answers;
}
static void give(int a, int b, int answer) {
	now.gifts++; N[a].next = b + 1;
	if (answer) { put(a, b, N[a].leases[b] / 2); return; }
	now.faults++; now.lateBase = now.number; now.lateOwner = b; now.lateEpoch = N[a].leases[b] / 2; now.lateWriter = a;
	if (mistake == noDoubt) N[a].next = 0; else N[a].doubt = now.number;
}
static void dropLate() { now.lateBase = now.lateOwner = now.lateEpoch = now.lateWriter = 0; }
static int mustGiveAgain(int a) { return mayWrite(a) && N[a].doubt; }
static void giveAgain(int a) {
	int heir = N[a].next - 1;
	if (mistake == readEndsDoubt) N[a].doubt = N[a].next = 0;
	else if (alive(a, heir)) put(a, heir, N[a].leases[heir] / 2);
	else put(a, now.owner[now.number], now.epoch[now.number]);
}
static int mustPlace(int a) {
	return mayWrite(a) && !unknown(a) && (!N[a].moved || isVoid(a, now.owner[N[a].seen], now.epoch[N[a].seen])) && !N[a].doubt && !N[a].cut && reachesMost(a) &&
		(isVoid(a, ownerOf(a), epochOf(a)) || mistake == staleClaim && ownerOf(a) != a);
}
static int mayPlace(int a, int b) { return mustPlace(a) && alive(a, b) && !N[b].cut; }
static void place(int a, int b) { checkFree(); put(a, b, N[a].leases[b] / 2); }
static int mayWriteMoves(int a) {
	if (renews(a) && N[a].clock > 1) return 1;
	for EACH(b) if (hears(a, b) && lives(b) && !N[b].reach) return 0; /* one that holds on may not know yet */
	return renews(a);
}
static int mustWriteMove(int a) {
	return mayWrite(a) && N[a].moved && mayWriteMoves(a) && !isVoid(a, ownerOf(a), epochOf(a)) &&
		(mistake == movesWithoutFence || isVoid(a, now.owner[N[a].seen], now.epoch[N[a].seen]));
}
static void writeMove(int a) { checkFree(); put(a, N[a].moved - 1, N[a].movedIn); }
static int mustPropose(int a) { return moving(a) && !N[a].proposal && lost(a) && !N[a].doubt; }
static int mayPropose(int a, int b) { return mustPropose(a) && holds(a, b); }
static int mustAgree(int a) {
	int p = N[a].proposal, equal = 1;
	for EACH(b) equal &= b == a || !holds(a, b) || N[b].moved == p || N[b].moved == N[a].moved && N[b].proposal == p;
	return p && moving(a) && (equal || mistake == unequal);
}
static void agree(int a) {
	N[a].moved = N[a].proposal; N[a].movedIn = N[a].leases[N[a].moved - 1] / 2; N[a].replaces = now.since[N[a].seen]; N[a].proposal = 0;
}
/* only nodes that have the unit, or had it before it was moved, are fenced here */
static int mustFence(int a, int b) {
	int l = now.lease[b], same = 2 * N[b].life == l;
	if (a == b || !lives(a) || !N[a].reach || N[a].leases[b] != l || !active(l)) return 0;
	if (now.owner[N[a].seen] == b && 2 * now.epoch[N[a].seen] == l) {
		if (mistake != notFollowed && hears(a, b) && N[b].hung && !N[b].answers) return 1; /* its agent does not follow */
		if (movedFrom(a, b) && same && mayWriteMoves(a)) return 1;
	} else if (N[a].moved != b + 1 || 2 * N[a].movedIn != l) return 0;
	if (dead(a, b)) return reachesMost(a) && !N[a].cut || mistake == minority;
	if (hears(a, b) && same && !lives(b) && !N[b].reach) return 1; /* it has yielded */
	return N[a].clock == 3 && !renews(b) && N[b].clock >= (mistake == fencedEarly ? 1 : 3); /* silent */
}
static void fence(int a, int b) { now.lease[b]++; N[a].leases[b] = now.lease[b]; }
static int waits(int a) { /* it has done what it must */
	if (mustGiveAgain(a) || mustPlace(a) || mustWriteMove(a) || mustGiveUp(a) || mustPropose(a) || mustAgree(a)) return 0;
	for EACH(b) if (mustFence(a, b)) return 0;
	return a != now.slow || !can(step, a);
}
static int unseen(int a) { return N[a].hung && N[a].blocked; } /* nobody knows anything of its agent */
static int well(int a) { return lives(a) && N[a].reach && !N[a].cut && !N[a].blocked && !N[a].hung && reachesMost(a); }
static int spent() { return now.number >= TABLES || now.lease[0] >= 2 * EPOCHS || now.lease[1] >= 2 * EPOCHS || now.lease[2] >= 2 * EPOCHS; }
static int nobodyAnswers() { return !N[0].answers && !N[1].answers && !N[2].answers; }
static void tick() {
	int healthy = 0, refreshed[NODES];
	for EACH(a) {
		healthy |= well(a); refreshed[a] = right(a) || handsOver(a);
		if (agent(a) && right(a) && !N[a].answers && !mustWait(a)) now.wrong = ownedInVain;
	}
	for EACH(a) {
		if (N[a].answers) N[a].answers = refreshed[a] ? 2 : N[a].answers - 1;
		if (N[a].next && !N[a].doubt) { /* an address that is handed over lives as long as that */
			N[a].next = 0;
			if (!agent(a) && !right(a)) N[a].answers = 0;
		}
		if (N[a].clock < 3) N[a].clock++;
		/* a move that was not written for so long is none */
		if (renews(a) && (N[a].clock == 3 || N[a].clock == 2 && N[a].moved == a + 1)) endMove(a);
	}
	now.silence = healthy && !unseen(0) && !unseen(1) && !unseen(2) && nobodyAnswers() && !spent() ? now.silence + 1 : 0;
	if (now.silence > 5) now.wrong = notAnswered;
}

/* what happens to a node */
static int bad() { return now.faults < maxFaults; }
static void fault() { now.faults++; now.hurt = 1; }
static void setReach(int a, int reach) { N[a].reach = reach; if (N[a].up) N[a].clock = 0; }
static void setUp(int a, int up) {
	if (!up && !handsOver(a)) N[a].next = 0;
	N[a].up = up;
	if (N[a].reach) N[a].clock = 0;
	if (up) return;
	if (now.lateWriter == a) dropLate();
	endEpoch(a);
	N[a].over = N[a].life = N[a].acts = N[a].seen = N[a].sure = N[a].doubt = N[a].hung = 0;
	for EACH(b) N[a].leases[b] = 0;
}
/* Left out: others hold on without the API server, and don't hear the one that reaches it; or moves are not heard of. */
static int leftOut() {
	for EACH(a) for EACH(b)
		if (N[a].blocked && (N[b].moved || a != b && N[a].reach && !N[b].reach && !N[3 - a - b].reach)) return 1;
	return 0;
}
/* a cut lasts until kernels whose agents don't work have ended, and a node has lost what is over, if it knows */
static int mayMend(int a) {
	if (!N[a].cut || mustGiveUp(a) || N[a].answers && !right(a) || N[a].reach && lives(a) && (N[a].seen < now.number || mustLook(a))) return 0;
	for EACH(b) if (b != a && !N[b].cut && N[b].answers && N[a].answers && !(agent(a) && agent(b))) return 0;
	return 1;
}
static int check() {
	if (now.wrong) return now.wrong;
	if (!now.hurt && nobodyAnswers()) return nobody;
	for EACH(a) for (int b = 0; b < a; b++) if (linked(a, b) && right(a) && right(b)) return twoOwners;
	return 0;
}
static void note(const char *what) { /* with TRAIL, for pan -r */
	if (!getenv("TRAIL")) return;
	printf("%s\n  number %d: n%d@%d, leases %d %d %d, wrong %d\n", what, now.number, now.owner[now.number], now.epoch[now.number],
		now.lease[0], now.lease[1], now.lease[2], now.wrong);
	for EACH(a) printf("  n%d%s%s%s%s%s%s%s: clock %d life %d%s acts %d seen %d, %d %d %d; moved %d@%d proposal %d doubt %d next %d answers %d\n", a,
		a == now.slow ? " slow" : "", N[a].up ? "" : " ended", N[a].reach ? "" : " away", N[a].cut ? " cut" : "", N[a].blocked ? " blocked" : "",
		N[a].hung ? " hung" : "", right(a) ? " has it" : "", N[a].clock, N[a].life, N[a].over ? " over" : "", N[a].acts, N[a].seen, N[a].leases[0],
		N[a].leases[1], N[a].leases[2], N[a].moved, N[a].movedIn, N[a].proposal, N[a].doubt, N[a].next, N[a].answers);
}
static int option(const char *name) { return getenv(name) ? atoi(getenv(name)) : 0; }
static void begin() {
	const char *name = getenv("MISTAKE");
	if (name) { MISTAKES(CALLED) if (!mistake) { printf("errors: no mistake is called %s\n", name); exit(1); } }
	maxFaults = option("FAULTS"); maxGifts = option("GIFTS"); away = option("AWAY");
	now.owner[0] = NOBODY; now.epoch[1] = now.since[1] = 1; N[0].answers = 2;
	for EACH(a) {
		now.lease[a] = 2; N[a].up = N[a].reach = N[a].life = N[a].seen = N[a].sure = 1; N[a].clock = 3; N[a].acts = 2;
		for EACH(b) N[a].leases[b] = 2;
	}
	if (!away) return; /* else the API server is, for all, and the owner is dead; or for all but the owner, which is cut off (2) */
	N[0].reach = away == 2; N[1].reach = N[2].reach = 0; now.hurt = 1;
	if (away == 2) N[0].cut = 1; else setUp(0, 0), N[0].answers = 0;
}
}

#define when(guard, effect) :: d_step { \
		c_expr { !now.ended && (guard) } -> \
		c_code { effect; settle(); now.ended |= leftOut(); now.wrong = now.ended ? 0 : check(); note(#guard " -> " #effect); }; \
		assert(!wrong) }
#define happens(guard, effect) when(guard, effect; now.silence = 0)
#define of_slow(a, f) when(now.slow == a && can (f, a), f(a))

#define between(a, b) \
	when(mayGive (a, b), give(a, b, 1)) \
	when(mayGive (a, b) && bad () && !now.lateBase, give(a, b, 0)) \
	when(mayPlace (a, b), place(a, b)) \
	when(mayPropose (a, b), N[a].proposal = b + 1) \
	when(mustFence (a, b), fence(a, b))

#define node(a) \
	of_slow(a, renew) of_slow(a, readTable) of_slow(a, watch) of_slow(a, list) of_slow(a, ask) \
	when(mustGiveAgain (a), giveAgain(a)) \
	when(mustWriteMove (a), writeMove(a)) \
	when(mustGiveUp (a), endEpoch(a)) \
	when(mustAgree (a), agree(a)) \
	when(now.gifts < maxGifts && mayWrite (a) && !N[a].doubt, now.gifts++; put(a, now.owner[N[a].seen], now.epoch[N[a].seen])) /* another unit */ \
	between(a, 0) between(a, 1) between(a, 2) \
	happens(bad () && now.n[a].reach, fault(); setReach(a, 0)) \
	happens(!N[a].reach, setReach(a, 1)) \
	happens(bad () && N[a].up, fault(); setUp(a, 0)) \
	happens(!N[a].up, setUp(a, 1)) \
	happens(bad () && !N[a].cut, fault(); N[a].cut = 1) \
	happens(mayMend (a), N[a].cut = 0) \
	happens(bad () && !N[a].blocked, fault(); N[a].blocked = 1) \
	happens(N[a].blocked, N[a].blocked = 0) \
	happens(bad () && N[a].up && !N[a].hung, fault(); N[a].hung = 1) \
	happens(N[a].hung, N[a].hung = 0)

active proctype all() {
	c_code { begin(); };
	select(slow : 0 .. 1); /* n1 and n2 are alike */
	do
	node(0) node(1) node(2)
	happens(bad () && now.n[0].reach && now.n[1].reach && now.n[2].reach, fault(); setReach(0, 0); setReach(1, 0); setReach(2, 0))
	when(now.lateBase == now.number && now.number < TABLES, send(now.lateWriter, now.lateOwner, now.lateEpoch); dropLate())
	when(now.lateBase && now.lateBase != now.number, dropLate())
	when(waits (0) && waits (1) && waits (2), tick())
	:: ended /* for ever; else time would stand still, which spin finds */
	od
}
