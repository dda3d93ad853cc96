#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers misbehave in every way that the scripted one knows: the guilty candidate is out, with the right reason, the
others race and the right one wins, and nobody who asks meanwhile waits for it.

usage: faults.py --build DIR [--long] [TEST...]
"""
import contextlib
import json
import os
import pathlib
import shlex
import time

from harness import Daemon, Skip, expect, key, run, slack
from wire import Probe

CLEAR = ("times=100,80,120,101,150,95", "jitter=0.002")  # 1 wins, 5 is second
PROBLEM, OTHER = key(64), key(64, 32)
LOOK_MS = 400
LOOKUP_MS = 50
ATTEMPTS = 4  # at what other programs can only lengthen: once is enough


@contextlib.contextmanager
def faulty(build, *scenario, section=None, **sweep):
    """A daemon whose worker has that fault, and somebody who looks its problem up all the time."""
    sweep = {"look_deadline_min": f"{LOOK_MS}ms", **sweep}
    with Daemon(build, sweep=sweep).fake(*CLEAR, *scenario, **(section or {})) as d:
        d.wait_ready()
        with Probe(d, PROBLEM, "nonsense,a=b") as probe:
            yield d
            worst, count, median = probe.end()
        expect(count > 3, "the probe found no time", count)
        expect(worst[0] < LOOKUP_MS * slack(build), f"a lookup took {worst[0]:.1f} ms", worst, count, median)


def explain(d, problem=PROBLEM):
    return d.tunectl("explain", problem, "--as", "cpu")[1]


def expect_winner(d, winner=1, raced=5, problem=PROBLEM):
    answer = d.wait_answer(problem)
    expect(answer["kind"] == "hit" and answer["tactic"] == {"id": winner}, "not the right winner", answer)
    expect(answer["candidates"] == raced and answer["state"] == "confirmed", f"{raced} were to race", answer)
    return answer


def expect_denied(d, rules, problem=PROBLEM):
    """Exactly these candidates are denied, each for a reason that holds those words."""
    # A rule counts once it is on disk, which may be a moment after the entry.
    told = d.wait_for(lambda: (e := explain(d, problem)) and len(e["deny"]) >= len(rules) and e, 5, f"{len(rules)} rules")
    denied = {rule["tactic"]["id"]: rule for rule in told["deny"]}
    expect(denied.keys() == rules.keys(), "not exactly the guilty are denied", told["deny"])
    for candidate, words in rules.items():
        rule = denied[candidate]
        expect(all(word in rule["reason"] for word in words), f"not the reason of {candidate}", rule["reason"], words)
        expect(rule["source"] == "sweep" and rule["op"] == "matmul" and rule["date"], "odd", rule)
    status = d.status()
    expect(status["denied"] == len(rules) and status["refused"] == [], "status does not count", status["denied"])
    return {candidate: rule["id"] for candidate, rule in denied.items()}


def journal(d, problem=PROBLEM):
    return next(lines for lines in d.journals().values() if lines[0]["key"] == problem)


def raced_in(d):
    return {candidate for line in journal(d) if line["say"] == "samples" for candidate in line["order"]}


# --- candidates that end their worker ---

def test_a_candidate_that_crashes_when_looked_at(build):
    with faulty(build, "look.2=stdout:about to fall", "look.2=crash:11") as d:
        expect_winner(d)
        expect_denied(d, {2: ["killed its worker", "signal 11", "about to fall"]})
        expect((d.counter("candidates_denied"), d.counter("worker_deaths_signal")) == (1, 1), "counted wrongly")
        expect(d.counter("worker_starts") == 2, "more workers than needed", d.counter("worker_starts"))


def test_a_family_that_kills_is_left_alone(build):
    """After three of a family the rest of it is not looked at; who was is raced."""
    times = "times=" + ",".join(["100"] * 10 + ["60"])
    with faulty(build, times, *(f"look.{i}=crash:11" for i in (1, 5, 7, 9))) as d:  # the odd ones are a family
        answer = expect_winner(d, winner=10, raced=7)
        expect_denied(d, {i: ["signal 11"] for i in (1, 5, 7)})
        expect(d.counter("worker_deaths_signal") == 3, "it was asked all the same", answer)
        expect(raced_in(d) >= {3, 10} and 9 not in raced_in(d), "not who was to race", raced_in(d))


def test_candidates_that_end_when_checked(build):
    with faulty(build, "check.2=exit:3", "check.4=crash:6") as d:
        expect_winner(d, raced=4)
        expect_denied(d, {2: ["exited with status 3"], 4: ["signal 6"]})


def test_candidates_that_crash_in_a_round(build):
    with faulty(build, "run.3=crash:11", "run.5=crash:4") as d:
        expect_winner(d, raced=6)
        expect_denied(d, {3: ["signal 11"], 5: ["signal 4"]})
        innocent = {line.get("candidate") for line in journal(d) if line["say"] == "journal_loss"} - {None}
        expect(innocent == {3, 5}, "the journal accuses others", innocent)


def test_what_is_denied_is_never_served_again(build):
    with Daemon(build).fake(*CLEAR, "look.2=crash:11") as d:
        d.wait_ready()
        d.lookup(PROBLEM)
        expect_winner(d)
        rule = expect_denied(d, {2: ["signal 11"]})[2]
        # A site's table names it: for a problem that we know, and for tokens that we do not.
        learned = next((d.dir / "state/tables").glob("*.json")).read_text().splitlines()
        entry = json.loads(learned[1])
        site = [learned[0].replace('"confirmed"', '"imported"')]
        for m in (64, 128):
            site.append(json.dumps({"key": key(m), "tactic": {"id": 2}, "state": "imported"}, separators=(",", ":"))
                        + ("," if m == 64 else ""))
        (d.dir / "site/named.json").write_text("\n".join([*site, "]}", ""]))
        expect(d.tunectl("reload")[0] == 0, "the site's table was refused", d.status()["refused"])

        def check(when):
            answer = d.lookup(PROBLEM)
            expect(answer["layer"] == "learned" and answer["tactic"] == {"id": 1}, f"served {when}", answer)
            others = explain(d)["others"]
            expect([(o["layer"], o["why"]) for o in others] == [("site", "denied")], f"not told why {when}", others)
            answer = d.lookup(key(128))
            expect(answer["kind"] == "miss" and answer["reason"] == "denied", f"served {when}", answer)

        d.sweep["when"] = "never"  # or it would be swept, and answered
        d.restart()
        d.wait_ready()
        check("after a restart")
        expect(d.tunectl("reload")[0] == 0 and d.status()["denied"] == 1, "the rule went with a reload")
        check("after a reload")
        # Swept again it is not even looked at.
        d.sweep["when"] = "always"
        d.restart()
        d.wait_ready()
        code, _, _ = d.tunectl("sweep", PROBLEM, "--as", "cpu", "--force", "--wait", timeout=30)
        expect(code == 0 and d.counter("worker_deaths_signal") == 0, "the killer was started again", code)
        answer = d.lookup(PROBLEM)
        expect(answer["tactic"] == {"id": 1} and answer["sweep"] != entry["sweep"], "not swept again", answer)
        # An admin may bring it back.
        code, told, _ = d.tunectl("allow", rule)
        expect(code == 0 and told["restored"] == 2, "not allowed", code, told)
        answer = d.lookup(PROBLEM)
        expect(answer["layer"] == "site" and answer["tactic"] == {"id": 2}, "allowed, but not served", answer)
        expect(explain(d)["deny"] == [] and d.status()["denied"] == 0, "the rule is still there")
        expect(d.tunectl("allow", rule)[0] == 4, "a rule that is not there was removed")


# --- candidates that do not come back ---

def timed_sweep(build, *scenario):
    """How long a sweep with that fault takes, and the daemon's word on it."""
    with faulty(build, *scenario) as d:
        begun = time.monotonic()
        d.lookup(PROBLEM)
        expect_winner(d, raced=5 if scenario else 6)
        took_ms = (time.monotonic() - begun) * 1e3
        expect_denied(d, {})
        if scenario:
            expect(2 not in raced_in(d), "the slow one raced")
        return took_ms, d.counter("worker_deaths_deadline"), d.counter("worker_starts")


def expect_cost(build, deaths, plain_ms, *scenario):
    """So many workers die of their deadline, and each costs one deadline: less than two, in the best attempt."""
    room_ms = 0.75 * LOOK_MS * slack(build)
    costs = []
    while not costs or (min(costs) >= LOOK_MS + room_ms and len(costs) < ATTEMPTS):
        took_ms, late, starts = timed_sweep(build, *scenario)
        expect(late == deaths and starts == 1 + deaths, f"{scenario}: not killed {deaths} times", late, starts)
        expect(took_ms >= LOOK_MS * deaths, f"{scenario}: killed before its deadline", took_ms)
        costs.append(took_ms - plain_ms)
    expect(min(costs) < LOOK_MS + room_ms, f"{scenario} cost {min(costs):.0f} ms", costs, plain_ms)


def test_a_slow_candidate_costs_one_deadline(build):
    plain_ms = min(timed_sweep(build)[0] for _ in range(2))
    for fault in ("look.2=hang", "look.2=ignore", "look.2=spin"):
        expect_cost(build, 1, plain_ms, fault)
    # 400 times slower than native, in real time: two launches of 48 ms are within the deadline.
    expect_cost(build, 0, plain_ms, "sleep=1", "look.2=slow:400")
    # 100,000 times slower they are not.
    expect_cost(build, 1, plain_ms, "sleep=1", "look.2=slow:100000")


def test_a_disturbed_look_drops_nobody(build):
    with faulty(build, "look.1=slow:100", "look.2=disturbed:100") as d:
        expect_winner(d, winner=5, raced=5)
        expect(2 in raced_in(d), "dropped for what others did")
    with faulty(build, "look.1=disturbed:100") as d:
        expect_winner(d, winner=1, raced=6)


def test_what_was_hopeless_is_not_looked_at_again_at_larger_buckets(build):
    with faulty(build, "look.2=hang") as d:
        expect_winner(d)
        d.lookup(key(256))
        expect_winner(d, problem=key(256))
        expect(d.counter("worker_deaths_deadline") == 1, "it cost another deadline", d.counter("worker_deaths_deadline"))
        d.lookup(key(16))  # a smaller one may be another matter
        expect_winner(d, problem=key(16))
        expect(d.counter("worker_deaths_deadline") == 2, "judged by a larger one", d.counter("worker_deaths_deadline"))


def test_candidates_that_hang_in_a_round_or_a_check(build):
    with faulty(build, "run.3=hang", "check.5=ignore") as d:
        expect_winner(d, raced=5)
        expect_denied(d, {3: ["hung"], 5: ["hung"]})
        expect(d.counter("worker_deaths_signal") == 0, "counted as crashes", d.counter("worker_deaths_signal"))


# --- candidates that are wrong, or not able ---

def test_wrong_output_never_wins(build):
    for fault, words in (("lie", ["wrong output", "element [0,1] is wrong"]), ("nan", ["wrong output"])):
        with faulty(build, f"check.1={fault}") as d:
            expect_winner(d, winner=5)
            expect_denied(d, {1: words})
            expect(1 not in raced_in(d), "it raced")
            expect(d.counter("candidates_rejected") == 1, "not counted", d.counter("candidates_rejected"))
            # Wrong at this bucket, perhaps not at others: it is checked there.
            d.lookup(key(16))
            d.wait_answer(key(16))
            expect_denied_at = [rule["tactic"]["id"] for rule in explain(d, key(16))["deny"]]
            expect(expect_denied_at == [1], "not checked at another bucket", expect_denied_at)


def test_a_check_without_evidence_is_no_check(build):
    with Daemon(build).fake(*CLEAR, "check.1=blind") as d:
        d.wait_ready()
        d.lookup(PROBLEM)
        d.wait_for(lambda: d.counter("sweeps_failed") > 0, 20, "the sweep's end")
        expect(d.lookup(PROBLEM)["kind"] == "miss", "served unchecked", d.lookup(PROBLEM))


def test_output_that_differs_from_run_to_run_is_said(build):
    with faulty(build, "check.1=unsteady") as d:
        expect(expect_winner(d, raced=6)["repeatable"] is False, "not said")


def test_candidates_that_the_library_refuses(build):
    with faulty(build, "look.2=fail:not on this CPU", "check.3=fail:no scratch memory", "run.4=fail:not now") as d:
        expect_winner(d, raced=4)
        expect_denied(d, {})
        told = {line["candidate"]: line["detail"] for line in journal(d) if line["say"] == "failed"}
        expect(told == {2: "not on this CPU", 3: "no scratch memory", 4: "not now"}, "not in the journal", told)
        expect(d.counter("worker_starts") == 1, "a refusal is no reason to end a worker", d.counter("worker_starts"))


def test_a_candidate_that_takes_all_memory(build):
    if slack(build) > 1:
        raise Skip("a worker with sanitizers needs more address space than any limit grants")
    with faulty(build, "look.2=grow:4000000000", section={"rlimit_as": "256MiB"}, look_deadline_min="10s") as d:
        expect_winner(d)
        expect_denied(d, {2: ["exited with status 1", "out of memory"]})


# --- workers that talk too much ---

def test_floods_on_stdout_and_stderr(build):
    with faulty(build, "look.1=flood:40000", "run.2=flood:2000") as d:
        expect_winner(d, raced=6)
        size = sum(path.stat().st_size for path in (d.dir / "state/log").iterdir())
        expect(0 < size < 20 << 20, "the worker's log has no bound", size)
        expect(d.log_path.stat().st_size < 1 << 20, "the daemon's log was flooded", d.log_path.stat().st_size)
        resident = next(int(line.split()[1]) for line in pathlib.Path(f"/proc/{d.process.pid}/status").read_text()
                        .splitlines() if line.startswith("VmRSS"))
        expect(resident < 40960 * slack(build), "the daemon kept it all", resident)


def test_words_on_stdout_are_no_words_to_the_daemon(build):
    line = '{"say":"looked","candidate":2,"first_us":1,"device_us":0.5,"host_us":0.5}'
    with faulty(build, f"look.2=stdout:{line}") as d:
        expect_winner(d, raced=6)
        expect(line in (d.dir / "state/log/cpu.log").read_text(), "what it printed is not kept")


def expect_liar(build, fault, *words):
    """It is believed nothing; the sweep fails for one of these reasons, and is not begun again at once."""
    with faulty(build, fault) as d:
        d.lookup(PROBLEM)
        history = d.wait_ended(PROBLEM)
        expect("failed" in history and any(word in history for word in words), f"{fault}: not the reason", history)
        expect(d.lookup(PROBLEM)["kind"] == "miss" and explain(d)["deny"] == [], "it was believed", explain(d))
        expect(d.counter("sweeps_failed") == 1 and d.counter("worker_deaths_protocol") == 1, "counted wrongly", fault)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            d.lookup(PROBLEM)
        expect(d.counter("sweeps_started") == 1, "begun again at once", d.counter("sweeps_started"))


def test_liars_are_not_believed(build):
    expect_liar(build, "look.2=garbage@1", "no line of the protocol")
    expect_liar(build, "look.2=oversize", "longer than 1 MiB")
    # Which of its answers is the lie depends on what was asked meanwhile.
    expect_liar(build, "look.2=twice", "unasked", "when asked for")
    expect_liar(build, "check.3=twice", "unasked", "when asked for")
    expect_liar(build, 'check.2=say:{"say":"closed"}', "said 'closed' unasked")
    expect_liar(build, 'look.2=say:{"say":"looked","candidate":2,"first_us":1,"device_us":-5,"host_us":1}', "cannot be")
    expect_liar(build, 'look.2=say:{"say":"looked","candidate":4,"first_us":1,"device_us":5,"host_us":1}',
                "candidate 4 when asked for 2")
    expect_liar(build, 'run.2=say:{"say":"samples","round":7,"order":[0],"device_us":[1],"host_us":[1]}', "another round")
    expect_liar(build, 'check.2=say:{"say":"checked","candidate":2,"ok":true,"max_error":9,"limit":1,"repeatable":true}',
                "calls an error of 9 right")
    expect_liar(build, 'open=say:{"say":"opened","candidates":[],"space_digest":"x","method":"m"}', "it must be 1 to")


def test_a_liar_that_mends_its_ways(build):
    d = Daemon(build, sweep={"look_deadline_min": f"{LOOK_MS}ms"})
    with d.fake(*CLEAR, f"once={d.dir}/once", "look.2=garbage"):
        d.wait_ready()
        d.lookup(PROBLEM)
        expect("no line of the protocol" in d.wait_ended(PROBLEM), "not the reason", explain(d))
        d.lookup(OTHER)
        expect_winner(d, raced=6, problem=OTHER)
        command = shlex.split(d.lookup(PROBLEM)["command"])[1:]
        code, _, _ = d.tunectl(*command, "--as", "cpu", "--force", "--wait", timeout=30)
        expect(code == 0, "cannot be swept again", code)
        expect_winner(d, raced=6)


# --- workers that do not come up ---

def test_workers_that_do_not_say_hello(build):
    for fault, words in (("hello=hang", "was killed (deadline)"), ("hello=ignore", "was killed (deadline)"),
                         ("hello=exit:3", "exited with status 3"), ("hello=crash:11", "signal 11"),
                         ("hello=garbage", "was killed for its words")):
        with Daemon(build, sweep={"start_deadline": "1s"}).fake(*CLEAR, fault) as d:
            row = d.wait_for(lambda: next((w for w in d.status()["workers"] if w["state"] == "failed"), None), 10, fault)
            expect(words in row["detail"] and "pid" not in row, f"{fault}: not the reason", row)
            code, _, sentence = d.tunectl("lookup", PROBLEM, "--as", "cpu")
            expect(code == 4 and "hello" in sentence, "asked in nobody's name", code, sentence)
            code, told, _ = d.tunectl("sweep", PROBLEM)
            expect(code != 0, "a sweep nobody can do was taken", told)
            time.sleep(0.5)
            expect(d.counter("worker_starts") == 1 and d.children() == {}, f"{fault}: tried again at once", d.children())


def test_a_worker_that_leaves_a_child(build):
    d = Daemon(build)
    mark = d.dir / "child"
    with d.fake(*CLEAR, f"look.1=fork:{mark}@1", "check.2=crash:11"):
        d.wait_ready()
        d.lookup(PROBLEM)
        expect_winner(d)
        child = int(mark.read_text())
        children = d.children()
        launchers = [line for line in children.values() if "/tactic-launch " in line]
        expect(len(launchers) == 1, "more than one worker lives", children)
        # The first worker's child went with it; the second worker left one of its own.
        expect(len(children) == 3 and child in children, "children of dead workers live", children, child)


# --- native, and problems that cannot be opened ---

def expect_failed_once(build, words, *fault, parked=False):
    with faulty(build, *fault) as d:
        d.lookup(PROBLEM)
        history = d.wait_ended(PROBLEM)
        expect("failed" in history and words in history, f"{fault}: not the reason", history)
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            answer = d.lookup(PROBLEM)
            expect(answer["kind"] == "miss", "an answer all the same", answer)
        expect(d.counter("sweeps_started") == 1, f"{fault}: tried again and again", d.counter("sweeps_started"))
        expect(explain(d)["deny"] == [], "somebody was denied", explain(d)["deny"])
        expect(("not tried again by itself" in answer["next"]) == parked, "odd", answer)
        expect(words in d.log_path.read_text(), "not in the log", words)
        ends = [line for line in journal(d) if line["say"] == "journal_end"]
        expect(len(ends) == 1 and words in ends[0]["detail"], "not in the journal", ends)
        rows = [row["failed"] for row in d.status()["sweeps"]]  # what is parked waits for nothing
        expect(rows == [] if parked else len(rows) == 1 and words in rows[0], "not in status", rows)
        if parked:
            expect(words in answer["next"] and "--force" in answer["command"], "no cure for what is parked", answer)


def test_native_that_cannot_be_the_reference(build):
    expect_failed_once(build, "own pick killed the worker", "look.0=crash:11")
    expect_failed_once(build, "own pick is wrong: error 0.5, at most 0.001 is right: element", "check.0=lie:unsteady")
    expect_failed_once(build, "own pick does not run: no", "look.0=fail:no")
    # What would be the same again is not tried again.
    wrong = "own pick is wrong: error 0.5, at most 0.001 is right, the same in both runs: element"
    expect_failed_once(build, wrong, "check.0=lie", parked=True)
    expect_failed_once(build, "own pick is wrong: error not finite, at most 0.001", "check.0=nan", parked=True)
    expect_failed_once(build, "own pick does not run: not here", "look.0=hopeless:not here", parked=True)


def test_problems_that_cannot_be_opened(build):
    expect_failed_once(build, "refused the problem", "open=refuse:unsupported", parked=True)
    expect_failed_once(build, "refused the problem", "open=refuse:memory")
    expect_failed_once(build, "died opening the problem", "open=crash:11")


def test_a_worker_of_another_backend_is_not_asked(build):
    expect_failed_once(build, "the worker runs cudnn, not onednn", "backend=cudnn")


def test_native_that_crashes_is_parked_after_three_tries(build):
    with faulty(build, "look.0=crash:11") as d:
        d.lookup(PROBLEM)
        parked = d.wait_for(lambda: (a := d.lookup(PROBLEM)) and "not tried again" in a["next"] and a, 240, "it is parked")
        expect(d.counter("sweeps_started") == 3, "not three tries", d.counter("sweeps_started"))
        expect("own pick killed" in parked["next"] and "--force" in parked["command"], "odd", parked)


if __name__ == "__main__":
    run([test_a_candidate_that_crashes_when_looked_at, test_a_family_that_kills_is_left_alone,
         test_candidates_that_end_when_checked,
         test_candidates_that_crash_in_a_round, test_what_is_denied_is_never_served_again,
         test_a_slow_candidate_costs_one_deadline, test_a_disturbed_look_drops_nobody,
         test_what_was_hopeless_is_not_looked_at_again_at_larger_buckets,
         test_candidates_that_hang_in_a_round_or_a_check, test_wrong_output_never_wins,
         test_a_check_without_evidence_is_no_check,
         test_output_that_differs_from_run_to_run_is_said, test_candidates_that_the_library_refuses,
         test_a_candidate_that_takes_all_memory, test_floods_on_stdout_and_stderr,
         test_words_on_stdout_are_no_words_to_the_daemon, test_liars_are_not_believed, test_a_liar_that_mends_its_ways,
         test_workers_that_do_not_say_hello, test_a_worker_that_leaves_a_child,
         test_native_that_cannot_be_the_reference, test_problems_that_cannot_be_opened,
         test_a_worker_of_another_backend_is_not_asked],
        [test_native_that_crashes_is_parked_after_three_tries])
