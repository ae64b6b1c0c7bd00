/*
 * Where the lease of one VIP is, as two nodes agree on it by a record (pkg/lease/location.go, relocate.go), for spin.
 *
 * What is modelled: the record (version, from, to), a VIP lease in each of two places, and what each node publishes (the
 * version of the record by which it acts), as the API server keeps them; each node's cache, which shows any state that has been,
 * all of it in order; writes that arrive late, or whose answer is lost; nodes that stop, whose claims are void from then on, and start.
 *
 * What must hold: two nodes never act on a claim on the VIP at once.
 *
 * check.sh runs it, and then with a mistake put in, which must be found.
 */
#ifndef NODES
#define NODES 2
#endif
#define NOBODY NODES
/* how far a run is followed */
#ifndef MAXRECORD
#define MAXRECORD 3
#endif
#ifndef MAXLEASE
#define MAXLEASE 1
#endif
#ifndef MAXEPOCH
#define MAXEPOCH 1
#endif

typedef Lease { byte holder; byte epoch; byte version }
typedef Server {
	byte version; bit from; bit to;  /* the record */
	Lease lease[2];                  /* by place */
	bool lives[NODES]; byte epoch[NODES]; byte acts[NODES]  /* node leases; acts: 0 is none yet */
}
Server api;
Server view[NODES];

/* each process */
bool ready[NODES];    /* its cache has shown the write that began its epoch */
byte acts[NODES];     /* the version of the record by which it acts for good */
/* a write on a VIP lease that is under way */
bool sent[NODES]; bit place[NODES]; byte over[NODES]; byte by[NODES];
bool awaited[NODES];  /* its answer is */

#define moving(s) (s.from != s.to)
#define copying(me) (moving(view[me]) && acts[me] != view[me].version)
#define holds(s, p, me) (s.lease[p].holder == me && s.lease[p].epoch == api.epoch[me])
#define void(s, p) (s.lease[p].holder == NOBODY || !s.lives[s.lease[p].holder] || s.lease[p].epoch != s.epoch[s.lease[p].holder])
#define mayact(me) (api.lives[me] && ready[me] && holds(view[me], view[me].from, me) && \
	(!moving(view[me]) || copying(me) || holds(view[me], view[me].to, me)))
#define other(me) (1 - me)
/* all act by the version that the cache of a node shows */
#define all(me) (!copying(me) && (!view[me].lives[other(me)] || view[me].acts[other(me)] == view[me].version))

inline copy(a, b) {
	a.version = b.version; a.from = b.from; a.to = b.to;
	for (i : 0 .. 1) {
		a.lease[i].holder = b.lease[i].holder; a.lease[i].epoch = b.lease[i].epoch; a.lease[i].version = b.lease[i].version;
		a.lives[i] = b.lives[i]; a.epoch[i] = b.epoch[i]; a.acts[i] = b.acts[i]
	}
	i = 0
}

proctype node(byte me) {
	byte i = 0;
	end:
	do
	/* a process starts */
	:: d_step { !api.lives[me] && api.epoch[me] < MAXEPOCH && !sent[me] ->
		api.epoch[me]++; api.lives[me] = true; api.acts[me] = 0; ready[me] = false; acts[me] = 0 }
	/* it stops, or is fenced and knows: its claims are void */
	:: d_step { api.lives[me] -> api.lives[me] = false; ready[me] = false; awaited[me] = false }

	/* the watch shows what there is */
	:: d_step { api.lives[me] ->
		if
		:: !ready[me] || !moving(api) -> acts[me] = api.version  /* at once */
		:: else -> skip
		fi;
		copy(view[me], api);
		ready[me] = true }
	/* its node lease is renewed */
	:: d_step { api.lives[me] && ready[me] && api.acts[me] != acts[me] -> api.acts[me] = acts[me] }

	/* it acquires or releases */
	:: d_step { ready[me] && !moving(view[me]) && void(view[me], view[me].from) && !sent[me] ->
		sent[me] = true; awaited[me] = true; place[me] = view[me].from; over[me] = view[me].lease[view[me].from].version; by[me] = api.epoch[me] }
	:: d_step { ready[me] && !moving(view[me]) && mayact(me) && !sent[me] && api.lease[view[me].from].version == view[me].lease[view[me].from].version && api.lease[view[me].from].version < MAXLEASE ->
		api.lease[view[me].from].holder = NOBODY; api.lease[view[me].from].version++;
		view[me].lease[view[me].from].holder = NOBODY; view[me].lease[view[me].from].version++ }
	/* it copies its claim */
	:: d_step { ready[me] && copying(me) && holds(view[me], view[me].from, me) && !holds(view[me], view[me].to, me) && !sent[me] ->
		sent[me] = true; awaited[me] = true; place[me] = view[me].to; over[me] = view[me].lease[view[me].to].version; by[me] = api.epoch[me] }
	/* all that it holds is copied */
	:: d_step { ready[me] && copying(me) && !awaited[me] && (!holds(view[me], view[me].from, me) || holds(view[me], view[me].to, me)) -> acts[me] = view[me].version }

	/* a write arrives, with its answer or without */
	:: d_step { sent[me] ->
		sent[me] = false;
		if
		:: api.lease[place[me]].version == over[me] && over[me] < MAXLEASE ->
			api.lease[place[me]].holder = me; api.lease[place[me]].epoch = by[me]; api.lease[place[me]].version++
		:: else -> skip
		fi;
		awaited[me] = false }
	:: d_step { awaited[me] -> awaited[me] = false }  /* it times out */

	/* the record: the next phase, or back */
	:: d_step { ready[me] && api.lives[me] && view[me].version == api.version && api.version < MAXRECORD && all(me) ->
		if
		:: moving(api) -> api.from = api.to
		:: else -> api.to = 1 - api.from
		fi;
		api.version++ }
	:: d_step { ready[me] && api.lives[me] && view[me].version == api.version && api.version < MAXRECORD && moving(api) ->
		api.to = api.from; api.version++ }
	od
}

/* What must always hold. */
active proctype always() {
	end:
	do
	:: atomic { mayact(0) && mayact(1) -> assert(false) }
	od
}

init {
	d_step {
		byte n = 0;
		api.version = 1;
		api.lease[0].holder = NOBODY; api.lease[1].holder = NOBODY;
		do
		:: n < NODES -> view[n].lease[0].holder = NOBODY; view[n].lease[1].holder = NOBODY; view[n].version = 1; n++
		:: else -> break
		od;
		n = 0
	}
	atomic { run node(0); run node(1) }
}
