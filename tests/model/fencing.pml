/*
 * The fencing protocol of one shard's log, exhaustively (docs/architecture.md; replicated_db/core/log/reading.py and leader.py).
 *
 * WHAT IS MODELLED
 *   Log          Append-only; what is in it stays. Records land one at a time, in any order, whenever they like after they were
 *                sent, or never; some land twice. So the producer is assumed neither idempotent nor gapless nor in order.
 *   Records      A claim has (term, nonce); a batch has (term, nonce, seq, prev_chain, first_index). A batch stands for every
 *                record that is not a claim, and takes one index. `prev_chain` is the identity of the record that the leader
 *                believes to be the last one that took effect (equal chains = equal last record, as a record holds its own).
 *   Reading rule A claim is valid iff its term = current + 1. A batch counts iff (term, nonce) is the current claim's and seq =
 *                last + 1. What is at or below the current term and does neither is void. Above it: a claim was missed, stop.
 *   Candidates   Each reads the log up to any point (a broker that is cut off serves an old end), sends a claim with a fresh nonce,
 *                and leads once a report has told it the claim's offset and it has read its own claim there as valid, with
 *                everything before. Another candidate may claim at any time: ownership in the consumer group is not
 *                relied on.
 *   Leaders      Up to PIPELINE batches in flight. A batch is effective, and its requests are answered, by the fast path (error-free
 *                report, every earlier one effective, offset = the previous own one's + 1), else after reading what lies
 *                between. A leader does not learn by itself that it was deposed: it goes on appending, and settles whatever
 *                is reported. (That its node's follower reads on under its feet can only make it give up earlier.)
 *   Reports      A report with an offset comes at any time after landing, or never; which copy's offset it gives, if there are two,
 *                is open. A report with an error, a report that never comes and a time-out are one thing, possible at any
 *                time whether the record has landed, will land or never does: nothing more is sent under that nonce. So is
 *                a crash, or a graceful step down with something in flight: the candidate begins anew with a fresh nonce.
 *   Pauses       Every process may stand still between any two steps for as long as it likes: interleaving.
 *
 * WHAT IS NOT  A log that loses what it acknowledged, readers that miss part of it (AHEAD_OF_LOG), what is in a batch: the
 *              simulation does those. Progress: nothing is said about anybody ever leading.
 *
 * BOUNDS       CANDIDATES processes, CLAIMS claims in all (hence up to so many terms), BATCHES batches a claim, PIPELINE of them in
 *              flight, COPIES records that land twice, LOG records in the log. check.py says which runs there are. Candidates
 *              are alike, so only runs in which the first claims come in the order of their numbers are looked at.
 *
 * WHAT HOLDS (each an assertion; I1 to I5 whenever a record lands, I6 to I9 whenever a candidate or leader acts)
 *   I1  No reader of the whole log meets a record above the current term.
 *   I2  A record that counts continues the one before: its prev_chain is the last record that took effect (else: BrokenLog).
 *   I3  A record that counts has first_index = last index + 1: one record for each position, none left out.
 *   I4  Records that count in one term are of one leader: two leaders never both have an effective record in a term.
 *   I5  Terms of valid claims rise by one.
 *   I6  Whoever reads any part of the log, in however many steps, comes to the same term, nonce, seq and index at each offset.
 *   I7  An answered batch counts: it is not void, at the very offset at which it was answered.
 *   I8  An answered batch has its index alone: never two answered batches of one index.
 *   I9  A batch that was sent after another was answered, and is answered itself, has a higher index: what a read index
 *       (a record of the leader's own, sent after the question, effective) proves about linearizable reads.
 *
 * MUTANTS      -DNO_NONCE       nobody compares nonces, neither readers nor a candidate that looks for its own claim
 *              -DNO_CONTIGUITY  an error-free report alone makes a batch effective
 *              -DNO_SEQ         the reading rule does not look at seq
 *              -DNO_READ_BACK   a candidate leads as soon as its claim is reported, without reading it as valid
 *              Each has a counterexample, the shortest one, told in words in the file NAME.trace here. See check.py.
 */

#ifndef CANDIDATES
#define CANDIDATES 3
#endif
#ifndef CLAIMS
#define CLAIMS 3
#endif
#ifndef BATCHES
#define BATCHES 2
#endif
#ifndef PIPELINE
#define PIPELINE 2
#endif
#ifndef COPIES
#define COPIES 1
#endif
#ifndef LOG
#define LOG 7
#endif

/* A record is named by its slot: (nonce, seq), seq 0 being the claim. The rest of it follows from who sent it. */
#define WIDTH (BATCHES + 1)
#define SLOTS ((CLAIMS + 1) * WIDTH)
#define SLOT(nonce, seq) ((nonce) * WIDTH + (seq))
#define NONCE_OF(slot) ((slot) / WIDTH)
#define SEQ_OF(slot) ((slot) % WIDTH)

#ifdef NO_NONCE
#define SAME_NONCE(a, b) true
#else
#define SAME_NONCE(a, b) ((a) == (b))
#endif
#ifdef NO_NONCE
#define CHAINED(slot) true      /* look further than this check, which would stop every reader, to what it would hide */
#else
#define CHAINED(slot) (last_record == slot - 1)
#endif
#ifdef NO_SEQ
#define NEXT_SEQ(seq, last) true
#else
#define NEXT_SEQ(seq, last) ((seq) == (last) + 1)
#endif

/* ---- what was sent, by nonce and by slot; 0 is no nonce ---- */
byte nonces;                 /* claims so far: the last nonce given out */
byte term_of[CLAIMS + 1];    /* term that the holder of a nonce claimed */
byte base_of[CLAIMS + 1];    /* index on which the holder builds: its batch seq has first_index base + seq */
byte sent[CLAIMS + 1];       /* seq of the last batch sent under a nonce */
byte landed[SLOTS];          /* offset + 1 of the first copy, 0 if none */
byte again[SLOTS];           /* offset + 1 of the second copy, 0 if none */
bool claimed[CLAIMS + 1];    /* the claim was sent */
byte copies;                 /* second copies so far */

/* ---- the log, and what the reader of the whole log says at each offset ---- */
byte end;
byte log[LOG];
bool takes_effect[LOG];
byte log_term[LOG];          /* current term, nonce, seq and index behind each offset */
byte log_nonce[LOG];
byte log_seq[LOG];
byte log_index[LOG];
byte last_record;            /* slot of the last record that took effect */

/* ---- answers ---- */
byte answered_by[LOG + 1];       /* slot that was answered for an index */
byte highest_answer;
byte answers_before[SLOTS];      /* highest index answered when a slot was sent */

/* ---- one reader's position: what it has read, and what the reading rule made of it ---- */
typedef Reader { byte at; byte term; byte nonce; byte seq; byte index }
Reader reader[CANDIDATES];

/* The reading rule: read the record at r.at. Sets `effect`. */
inline judge(r, slot, effect) {
    effect = false;
    if
    :: SEQ_OF(slot) == 0 ->
        if
        :: term_of[NONCE_OF(slot)] == r.term + 1 ->
            effect = true; r.term++; r.nonce = NONCE_OF(slot); r.seq = 0
        :: else -> assert(term_of[NONCE_OF(slot)] <= r.term)                    /* I1, I5: else a claim was missed */
        fi
    :: else ->
        assert(term_of[NONCE_OF(slot)] <= r.term);                              /* I1 */
        if
        :: term_of[NONCE_OF(slot)] == r.term && SAME_NONCE(NONCE_OF(slot), r.nonce) && NEXT_SEQ(SEQ_OF(slot), r.seq) ->
            effect = true; r.seq = SEQ_OF(slot); r.index++
        :: else
        fi
    fi;
    r.at++
}

Reader whole;                    /* the reader of the whole log, always at its end */
byte leader_of_term[CLAIMS + 1]; /* whose records have counted in a term */

/* A copy of a sent record becomes part of the log. */
inline land(slot) {
    log[end] = slot;
    judge(whole, slot, effect);
    if
    :: effect && SEQ_OF(slot) > 0 ->
        printf("  offset %d: batch of leader %d, term %d, seq %d, first_index %d: counts\n",
            end, NONCE_OF(slot), term_of[NONCE_OF(slot)], SEQ_OF(slot), base_of[NONCE_OF(slot)] + SEQ_OF(slot));
        assert(leader_of_term[whole.term] == 0 || leader_of_term[whole.term] == NONCE_OF(slot));    /* I4 */
        leader_of_term[whole.term] = NONCE_OF(slot);
        assert(CHAINED(slot));                                                                      /* I2 */
        assert(base_of[NONCE_OF(slot)] + SEQ_OF(slot) == whole.index)                               /* I3 */
    :: effect && SEQ_OF(slot) == 0 ->
        printf("  offset %d: claim of candidate %d, term %d: valid\n", end, NONCE_OF(slot), whole.term)
    :: !effect && SEQ_OF(slot) > 0 ->
        printf("  offset %d: batch of leader %d, term %d, seq %d, first_index %d: void (current: term %d of %d, seq %d)\n",
            end, NONCE_OF(slot), term_of[NONCE_OF(slot)], SEQ_OF(slot), base_of[NONCE_OF(slot)] + SEQ_OF(slot),
            whole.term, whole.nonce, whole.seq)
    :: else ->
        printf("  offset %d: claim of candidate %d, term %d: void, the term is taken\n",
            end, NONCE_OF(slot), term_of[NONCE_OF(slot)])
    fi;
    if
    :: effect -> last_record = slot
    :: else
    fi;
    takes_effect[end] = effect;
    log_term[end] = whole.term; log_nonce[end] = whole.nonce; log_seq[end] = whole.seq; log_index[end] = whole.index;
    end++;
    effect = false
}

/* The brokers: any record that was sent may land now, a landed one once more while COPIES last. */
active proctype Brokers() {
    byte slot;
    bool effect;
    do
    :: atomic {
        end < LOG ->
        slot = WIDTH;
        do
        :: slot < SLOTS - 1 -> slot++
        :: claimed[NONCE_OF(slot)] && SEQ_OF(slot) <= sent[NONCE_OF(slot)] && landed[slot] == 0 ->
            land(slot); landed[slot] = end; break
        :: landed[slot] > 0 && again[slot] == 0 && copies < COPIES ->
            printf("  (a second copy)\n");
            copies++; land(slot); again[slot] = end; break
        od;
        slot = 0
       }
    od
}

/* Read on, up to offset `until` (exclusive), comparing with the reader of the whole log at each step. */
inline read_to(until) {
    do
    :: reader[me].at < until ->
        judge(reader[me], log[reader[me].at], effect);
        assert(effect == takes_effect[reader[me].at - 1]
            && reader[me].term == log_term[reader[me].at - 1] && reader[me].nonce == log_nonce[reader[me].at - 1]
            && reader[me].seq == log_seq[reader[me].at - 1] && reader[me].index == log_index[reader[me].at - 1])  /* I6 */
    :: else -> break
    od;
    effect = false
}

/* The next batch is effective at offset `last`: apply it, answer its requests. */
inline answer() {
    settled++;
    printf("leader %d answers its batch seq %d, index %d, found at offset %d\n",
        nonce, settled, base_of[nonce] + settled, last);
    assert(takes_effect[last] && log[last] == SLOT(nonce, settled));                        /* I7 */
    assert(answered_by[base_of[nonce] + settled] == 0);                                     /* I8 */
    answered_by[base_of[nonce] + settled] = SLOT(nonce, settled);
    assert(base_of[nonce] + settled > answers_before[SLOT(nonce, settled)]);                /* I9 */
    answers_before[SLOT(nonce, settled)] = 0;
    if
    :: base_of[nonce] + settled > highest_answer -> highest_answer = base_of[nonce] + settled
    :: else
    fi
}

/* One candidate: claim, lead, be deposed, claim again. */
proctype Candidate(byte me) {
    byte nonce;         /* of my claim */
    byte settled;       /* seq of my last effective batch */
    byte last;          /* offset of my last own effective record */
    byte found;         /* offset that a report gives */
    byte place;
    bool effect;

follow:
    atomic {
        nonces < CLAIMS && (me == 0 || nonces >= me) ->
        place = reader[me].at;
        do      /* any point ... */
        :: place < end -> place++
        :: break
        od;
        do      /* ... but what lies between two valid claims changes nothing in what it claims */
        :: place == reader[me].at || (takes_effect[place - 1] && SEQ_OF(log[place - 1]) == 0) -> break
        :: else -> place--
        od;
        read_to(place);
        place = 0;
        nonces++;
        nonce = nonces;
        term_of[nonce] = reader[me].term + 1;
        claimed[nonce] = true;
        printf("node %d has read up to offset %d and claims term %d as candidate %d\n",
            me, reader[me].at, term_of[nonce], nonce)
    }

    atomic {
        if
        :: landed[SLOT(nonce, 0)] > 0 -> found = landed[SLOT(nonce, 0)] - 1
        :: again[SLOT(nonce, 0)] > 0 -> found = again[SLOT(nonce, 0)] - 1
        :: nonces < CLAIMS ->
            printf("candidate %d hears nothing of its claim and gives up\n", nonce); nonce = 0; goto follow
        fi;
#ifdef NO_READ_BACK
        read_to(found);
        reader[me].at = found + 1; reader[me].term = term_of[nonce]; reader[me].nonce = nonce; reader[me].seq = 0;
#else
        read_to(found + 1);
#endif
        if
        :: reader[me].term == term_of[nonce] && SAME_NONCE(reader[me].nonce, nonce) ->
            printf("candidate %d takes its claim at offset %d for valid and leads term %d from index %d\n",
                nonce, found, term_of[nonce], reader[me].index);
            base_of[nonce] = reader[me].index; last = found; settled = 0; found = 0
        :: else ->
            printf("candidate %d finds its claim at offset %d void\n", nonce, found);
            nonce = 0; found = 0; goto follow
        fi
    }

lead:
    do
    :: atomic {     /* execute requests, send a batch */
        sent[nonce] < BATCHES && sent[nonce] - settled < PIPELINE ->
        sent[nonce]++;
        answers_before[SLOT(nonce, sent[nonce])] = highest_answer;
        printf("leader %d sends batch seq %d, first_index %d\n", nonce, sent[nonce], base_of[nonce] + sent[nonce])
       }
    :: atomic {     /* the report of the oldest batch in flight */
        sent[nonce] > settled && landed[SLOT(nonce, settled + 1)] > 0 ->
        if
        :: found = landed[SLOT(nonce, settled + 1)] - 1
        :: again[SLOT(nonce, settled + 1)] > 0 -> found = again[SLOT(nonce, settled + 1)] - 1
        fi;
#ifdef NO_CONTIGUITY
        last = found; answer();
#else
        if
        :: found <= last ->
            printf("leader %d: seq %d lies at offset %d, not behind %d: it stops (AHEAD_OF_LOG)\n",
                nonce, settled + 1, found, last);
            goto gone
        :: found == last + 1 && reader[me].at <= found ->       /* the fast path: nothing lies between, nothing is read */
            last = found; answer();
            reader[me].at = found + 1; reader[me].seq = settled; reader[me].index++
        :: else ->                                              /* read what lies between */
            read_to(found + 1);
            if
            :: SAME_NONCE(reader[me].nonce, nonce) && reader[me].term == term_of[nonce] &&
               reader[me].seq >= settled + 1 && takes_effect[found] ->
                last = found; answer()
            :: else ->
                printf("leader %d reads up to offset %d: seq %d does not count, it steps down\n", nonce, found, settled + 1);
                goto deposed
            fi
        fi;
#endif
        found = 0
       }
    :: atomic {     /* an error, a report that never comes, a crash, a step down */
        nonces < CLAIMS ->
        printf("leader %d gives up with %d batches in flight\n", nonce, sent[nonce] - settled); goto deposed
       }
    od;

deposed:
    atomic { nonce = 0; settled = 0; last = 0; found = 0; goto follow }

gone:
    skip
}

init {
    atomic {
        byte me;
        for (me : 0 .. CANDIDATES - 1) { run Candidate(me) }
    }
}
