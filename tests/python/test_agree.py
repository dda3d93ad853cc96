# SPDX-License-Identifier: Apache-2.0
"""Ranks that agree: eight processes, their collectives over pipes, two real daemons (as two nodes have), and ranks
that fail in all ways. Whatever happens, all ranks come to the same end after the same number of collectives."""
import multiprocessing
import multiprocessing.connection
import os
import time

import common
import flashinfer.autotuner.autotuner as stand_in
from common import ENVIRONMENT, EP, LAYOUT, MODEL, TP, Case, client, listening

import tacticd
from tacticd import agree, flashinfer

WORLD = 8
NODES = []  # two daemons


def setUpModule():
    NODES.extend([common.daemon(), common.daemon()])


def tearDownModule():
    for d in NODES:
        common.end(d)


class Rank:
    """One process's collectives, through the hub. Counts its calls."""

    def __init__(self, pipe, number):
        self.pipe, self.number, self.calls = pipe, number, []

    def _exchange(self, kind, obj):
        self.calls.append(kind)
        self.pipe.send((kind, obj))
        return self.pipe.recv()

    def broadcast(self, obj):
        return self._exchange("broadcast", obj)

    def all_gather(self, obj):
        return self._exchange("all_gather", obj)


def _live(pipe, number, program):
    """A rank's process: runs the program, sends what came of it."""
    rank = Rank(pipe, number)
    os.environ["TACTICD_SOCKET"] = common.socket_of(NODES[number % 2])
    try:
        with listening() as heard:
            result = program(rank)
        pipe.send(("end", {"result": result, "warnings": heard, "calls": rank.calls}))
    except BaseException as e:
        pipe.send(("end", {"result": e, "warnings": [], "calls": rank.calls}))


def hub(pipes, seconds=60):
    """Carries out collectives until all ranks have ended. Fails if two ranks are in different ones."""
    ends, deadline = {}, time.monotonic() + seconds
    while len(ends) < len(pipes):
        said = {}
        for number, pipe in enumerate(pipes):
            if number not in ends:
                if not pipe.poll(max(0, deadline - time.monotonic())):
                    raise AssertionError(f"rank {number} hangs; {sorted(ends)} have ended, {sorted(said)} wait")
                said[number] = pipe.recv()
        kinds = {kind for kind, _ in said.values()}
        if len(kinds) != 1:
            raise AssertionError(f"the ranks part: { {n: kind for n, (kind, _) in said.items()} }")
        objects = [obj for _, obj in said.values()]
        for number, (kind, obj) in said.items():
            if kind == "end":
                ends[number] = obj
            else:
                pipes[number].send(objects[0] if kind == "broadcast" else objects)
    return [ends[n] for n in range(len(pipes))]


def run(program, world=WORLD):
    """What came of each rank."""
    fork = multiprocessing.get_context("fork")  # the programs are closures
    pairs = [fork.Pipe() for _ in range(world)]
    ranks = [fork.Process(target=_live, args=(theirs, n, program)) for n, (_, theirs) in enumerate(pairs)]
    for rank in ranks:
        rank.start()
    try:
        return hub([ours for ours, _ in pairs])
    finally:
        for rank in ranks:
            rank.join(10)
            if rank.is_alive():
                rank.kill()
                rank.join()


def away(number):
    """Breaks one rank: its node has no daemon."""
    def breaks(rank):
        if rank.number == number:
            os.environ["TACTICD_SOCKET"] = "/nowhere/at/all"
    return breaks


def elsewhere(number, **facts):
    """Breaks one rank: its process has another environment."""
    def breaks(rank):
        if rank.number == number:
            stand_in.ENVIRONMENT.update(facts)
    return breaks


class Agree(Case):
    def table(self, breaks=lambda rank: None, **options):
        """Each rank's digest, through flashinfer.agreed_table."""
        def program(rank):
            breaks(rank)
            table = flashinfer.agreed_table(rank.broadcast, rank.all_gather, rank.number, WORLD, MODEL, EP, TP,
                                            **{"timeout_ms": 15000, **options})
            return table and (table.digest, table.covered, table.total)

        return run(program)

    def assertNobody(self, ends, *words):
        for end in ends:
            self.assertIsNone(end["result"])
            self.assertEqual(end["calls"], ["broadcast", "all_gather"])
            self.assertEqual(len(end["warnings"]), 1, end["warnings"])
            for word in words:
                self.assertIn(word, end["warnings"][0])

    def test_all(self):
        ends = self.table()
        self.assertEqual(len({e["result"] for e in ends}), 1)
        self.assertEqual(ends[0]["result"][1:], (len(common.BUCKETS), common.TOTAL))
        self.assertEqual({tuple(e["calls"]) for e in ends}, {("broadcast", "all_gather")})
        self.assertEqual([e["warnings"] for e in ends], [[]] * WORLD)

    def test_facts_that_nothing_depends_on_may_differ(self):
        ends = self.table(elsewhere(5, cudnn_version="92400"))
        self.assertEqual(len({e["result"] for e in ends}), 1)
        self.assertIsNotNone(ends[5]["result"])

    def test_a_node_without_a_daemon(self):
        self.assertNobody(self.table(away(5)), "rank 5: ", "/nowhere/at/all")

    def test_rank_0_without_a_daemon(self):
        self.assertNobody(self.table(away(0)), "rank 0: ", "/nowhere/at/all", "and 4 ranks more")

    def test_another_environment(self):
        self.assertNobody(self.table(elsewhere(6, flashinfer_version="0.7.4")), "rank 6: flashinfer is 0.7.4 here",
                          "holds for 0.6.16")
        self.assertNobody(self.table(elsewhere(3, gpu="unknown")), "rank 3: device is cpu:")

    def test_rank_0_has_nothing(self):
        self.assertNobody(self.table(elsewhere(0, flashinfer_version="0.7.4")), "0 of 42 problems are answered")

    def test_no_flashinfer_on_one(self):
        def breaks(rank):
            if rank.number == 2:
                stand_in.AutoTuner = None
                stand_in._collect_metadata = None
                import flashinfer.autotuner as package
                package._collect_metadata = None

        self.assertNobody(self.table(breaks), "rank 2: ", "environment")

    def test_a_daemon_that_is_silent(self):
        """Its rank costs a deadline, and nobody hangs."""
        def breaks(rank):
            if rank.number == 7:
                import socket
                rank.silent = socket.socket(socket.AF_UNIX)
                path = f"{NODES[0].dir}/silent-{os.getpid()}"
                rank.silent.bind(path)
                rank.silent.listen()
                os.environ["TACTICD_SOCKET"] = path

        begun = time.monotonic()
        self.assertNobody(self.table(breaks, timeout_ms=3000), "rank 7: ", "did not answer")
        self.assertLess(time.monotonic() - begun, 30)

    def test_bytes_that_changed_on_the_way(self):
        def breaks(rank):
            if rank.number == 4:
                right = rank.broadcast
                def wrong(obj):
                    offer = right(obj)
                    return {**offer, "text": offer["text"].replace(b"[32,4]", b"[32,5]")}
                rank.broadcast = wrong

        self.assertNobody(self.table(breaks), "rank 4: ", "digest")

    def test_another_table_with_a_digest_of_its_own(self):
        def breaks(rank):
            if rank.number == 4:
                right = rank.broadcast
                def wrong(obj):
                    offer = right(obj)
                    text = offer["text"].replace(b"[32,4]", b"[32,5]")
                    return {**offer, "text": text, "digest": tacticd.Table.read(text).digest}
                rank.broadcast = wrong

        self.assertNobody(self.table(breaks), "the ranks hold ", "(7 of them)", "(1 of them)")

    def test_collectives_that_fail_on_one_rank(self):
        def breaks(rank):
            if rank.number == 1:
                right = rank.broadcast
                def wrong(obj):
                    right(obj)
                    raise OSError("the caller's transport")
                rank.broadcast = wrong

        self.assertNobody(self.table(breaks), "rank 1: OSError: the caller's transport")

    def test_what_is_no_offer(self):
        def breaks(rank):
            right = rank.broadcast
            rank.broadcast = lambda obj: [right(obj)]

        self.assertNobody(self.table(breaks), "no offer of rank 0")

    def test_votes_of_strangers(self):
        def breaks(rank):
            right = rank.all_gather
            rank.all_gather = lambda obj: [{**v, "rank": [v["rank"]]} for v in right(obj)]

        self.assertNobody(self.table(breaks), "TypeError")

    def test_a_rank_is_missing(self):
        def breaks(rank):
            right = rank.all_gather
            rank.all_gather = lambda obj: right(obj)[:-1]

        self.assertNobody(self.table(breaks), "7 of 8 ranks were heard")

    def test_what_a_node_denies(self):
        """A tactic that a node has denied is run on no rank."""
        key = client(NODES[1]).flashinfer_problem(common.file_key(4), MODEL, LAYOUT)
        code, told, err = NODES[1].tunectl("deny", key, "[32,4]", "--reason", "it crashed here")
        self.assertEqual(code, 0, err)
        try:
            self.assertNobody(self.table(), "rank 1: this node denies it", "rank 3: ")
        finally:
            self.assertEqual(NODES[1].tunectl("allow", told["id"])[0], 0)
        self.assertIsNotNone(self.table()[1]["result"])

    def test_without_flashinfer(self):
        """tacticd.agreed_table: any recipe, the client's own environment."""
        def program(rank):
            with tacticd.Client(timeout_ms=15000) as c:
                c.fingerprint_flashinfer(ENVIRONMENT)
                table = tacticd.agreed_table(rank.broadcast, rank.all_gather, rank.number, 4, MODEL, LAYOUT, client=c)
                c.lookup("x")  # it is still open
                return table.digest

        ends = run(program, 4)
        self.assertEqual(len({e["result"] for e in ends}), 1, ends)

        def fails(rank):
            def broken():
                raise MemoryError("no client here")
            return tacticd.agreed_table(rank.broadcast, rank.all_gather, rank.number, 4, MODEL, LAYOUT, client=broken)

        for end in run(fails, 4):
            self.assertIsNone(end["result"])
            self.assertIn("MemoryError: no client here", end["warnings"][0])


class SeedAgreed(Case):
    CALLS = ["broadcast", "all_gather", "all_gather"]

    def seed(self, breaks=lambda rank: None):
        """[(seeded?, entries in FlashInfer)] by rank."""
        def program(rank):
            breaks(rank)
            done = flashinfer.seed_agreed(rank.broadcast, rank.all_gather, rank.number, WORLD, MODEL, EP, TP,
                                          timeout_ms=15000)
            return done, len(stand_in.AutoTuner.get()._file_configs)

        ends = run(program)
        self.assertEqual([e["calls"] for e in ends], [self.CALLS] * WORLD)
        self.assertEqual({len(e["warnings"]) for e in ends}, {0 if ends[0]["result"][0] else 1})
        return [e["result"] for e in ends], ends[0]["warnings"]

    def test_all(self):
        self.assertEqual(self.seed()[0], [(True, len(common.BUCKETS))] * WORLD)

    def test_one_flashinfer_refuses(self):
        """Then it is taken out again where it was taken."""
        def breaks(rank):
            if rank.number == 3:
                stand_in.LOADS = "no"
            stand_in.AutoTuner.get()._file_configs["mine"] = ("R", 1)

        results, warnings = self.seed(breaks)
        self.assertEqual(results, [(False, 1)] * WORLD)
        self.assertIn("rank 3: FlashInfer does not take the file", warnings[0])

    def test_no_table(self):
        results, warnings = self.seed(away(5))
        self.assertEqual(results, [(False, 0)] * WORLD)
        self.assertIn("rank 5: ", warnings[0])


class Judge(Case):
    """Votes of any make lead to a verdict."""

    def vote(self, rank, digest="a", why=None):
        return {"rank": rank, "digest": digest, "why": why}

    def test_votes(self):
        good = [self.vote(0), self.vote(1)]
        self.assertIsNone(agree.judge(good, 2))
        self.assertIsNone(agree.judge(good[::-1], 2))
        for votes in ([], good[:1], [self.vote(0), self.vote(0)], [*good, self.vote(2)], [self.vote(0), None],
                      [self.vote(0), {"rank": 1}], [self.vote(0), self.vote(7)], [self.vote(0), "x"]):
            self.assertIn("were heard", agree.judge(votes, 2))
        self.assertIn("rank 1: late", agree.judge([self.vote(0), self.vote(1, None, "late")], 2))
        self.assertIn("the ranks hold", agree.judge([self.vote(0), self.vote(1, "b")], 2))
        self.assertIn("the ranks hold", agree.judge([self.vote(0), self.vote(1, None)], 2))
