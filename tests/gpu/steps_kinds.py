# SPDX-License-Identifier: Apache-2.0
"""Steps of gpu.sh: one small problem of every kind that the workers claim, and what no library can do."""
import collections
import json
import re
import subprocess
import time

from room import LOOKUP_MS, SMALL, Asker

from harness import Failure, expect

PROBLEM_S = 60  # for one sweep, a worker's start and a compiler's first use included
QUIET_S = 3  # in which nothing may be tried again
GONE = "/nonexistent/libcublasLt.so.13"

# A problem that a section is asked for, and what may come of it: answered, refused, or either, and what stands in
# the reason of a refusal.
Case = collections.namedtuple("Case", "section key may reason", defaults=("",))
EITHER = ("answered", "refused")


def product(a, out, acc="f32", layout="tn", batch=1, m=64, n=1024, k=1024, epilogue="none", scale="none",
            workspace=32 << 20, b=None, backend="cublaslt"):
    return (f"matmul,backend={backend},a={a},b={b or a},out={out},acc={acc},layout={layout},batch={batch},m={m},n={n},"
            f"k={k},epilogue={epilogue},scale={scale},workspace_bytes={workspace}")


def experts(a="bf16", out="bf16", mode="none", tokens=64, top_k=2, experts=8, local=8, n=512, k=512,
            workspace=128 << 20, b=None):
    return (f"moe_grouped_matmul,backend=cudnn,a={a},b={b or a},out={out},acc=f32,mode={mode},tokens={tokens},"
            f"top_k={top_k},experts={experts},local_experts={local},n={n},k={k},workspace_bytes={workspace}")


def convolution(a="bf16", n=2, c=64, size=28, k=64, r=3, stride=1, pad=1, dilation=1, groups=1, out=None):
    return (f"convolution,backend=cudnn,a={a},b={a},out={out or a},acc=f32,layout=nhwc,n={n},c={c},h={size},w={size},"
            f"k={k},r={r},s={r},stride={stride},pad={pad},dilation={dilation},groups={groups},"
            f"workspace_bytes={128 << 20}")


def lt(*may, reason="", **dims):
    return Case("lt", product(**dims), may or ("answered",), reason)


# Each word of the worker's types, layouts, epilogues and scales at least once. What the worker itself says that not
# every version and device has may be refused, in words.
KINDS = [
    lt(a="bf16", out="bf16"),
    lt(a="bf16", out="bf16", m=16, n=2048, workspace=0),
    lt(a="bf16", out="bf16", layout="nn", batch=4, m=16),
    lt(a="bf16", out="bf16", epilogue="bias"),
    lt(a="bf16", out="bf16", epilogue="relu", layout="nn"),
    lt(a="bf16", out="bf16", epilogue="gelu", m=256),
    lt(a="bf16", out="bf16", epilogue="bias_relu", batch=4, n=512),
    lt(a="bf16", out="bf16", epilogue="bias_gelu", k=2048),
    lt(a="bf16", out="bf16", scale="tensor"),
    lt(a="bf16", out="f32"),
    lt(a="bf16", out="f32", epilogue="bias_gelu"),
    lt(a="f16", out="f16"),
    lt(a="f16", out="f16", layout="nn", epilogue="bias_gelu"),
    lt(a="f16", out="f16", acc="f16"),
    lt(a="f16", out="f32", epilogue="bias"),
    lt(a="f32", out="f32", n=512),
    lt(a="f32", out="f32", n=512, layout="nn", epilogue="bias_relu", workspace=0),
    lt(a="f32", out="f32", n=512, epilogue="gelu"),
    lt(a="f32", out="f32", acc="tf32"),
    lt(a="f32", out="f32", acc="tf32", layout="nn", batch=4, n=512, epilogue="bias"),
    lt(a="e4m3", out="bf16"),
    lt(a="e4m3", out="bf16", workspace=0, m=256),
    lt(a="e4m3", out="bf16", scale="tensor", epilogue="bias"),
    lt(*EITHER, a="e4m3", out="bf16", scale="tensor", epilogue="bias_gelu"),
    lt(*EITHER, a="e4m3", out="bf16", scale="row"),
    lt(*EITHER, a="e4m3", out="bf16", scale="row", m=256, epilogue="bias"),
    lt(a="e4m3", out="bf16", scale="tensor", batch=4, n=512),
    lt(a="e4m3", out="f16", scale="tensor"),
    lt(a="e4m3", out="f32"),
    lt(*EITHER, a="e4m3", out="e4m3", scale="tensor"),
    lt(a="s8", out="s32", acc="s32"),
    lt(a="s8", out="s32", acc="s32", batch=4, n=512, workspace=0),
    lt(a="s8", out="s8", acc="s32", scale="tensor"),
    lt(*EITHER, a="s8", out="s8", acc="s32", scale="tensor", epilogue="bias_relu"),
    lt(*EITHER, a="s8", out="f32", scale="tensor"),
    Case("cudnn", product("bf16", "bf16", backend="cudnn"), ("answered",)),
    Case("cudnn", product("f16", "f16", layout="nn", batch=4, n=512, backend="cudnn"), ("answered",)),
    Case("cudnn", convolution(), ("answered",)),
    Case("cudnn", convolution("f16", c=64, k=64, groups=4), ("answered",)),
    Case("cudnn", convolution(c=3, size=224, k=512, r=14, stride=14, pad=0), ("answered",)),
    Case("cudnn", experts(), ("answered",)),
    Case("cudnn", experts("f16", "f16", mode="gather", top_k=4), ("answered",)),
    Case("cudnn", experts(mode="gather", experts=32), ("answered",)),
    Case("cudnn", experts(mode="scatter"), EITHER),
    Case("cudnn", experts("e4m3"), EITHER),
]

# What cannot be, and why the worker says so.
CANNOT = [
    lt("refused", reason="k: .*multiple of 16", a="e4m3", out="bf16", k=1001),
    lt(*EITHER, reason="n: .*multiple of 16", a="e4m3", out="bf16", n=1001),
    lt(*EITHER, reason="layout: ", a="e4m3", out="bf16", layout="nn"),
    lt("refused", reason="scale: ", a="e4m3", out="bf16", scale="row", batch=4),
    lt("refused", reason="scale: ", a="bf16", out="bf16", scale="row"),
    lt(*EITHER, reason="n: .*multiple of 4", a="s8", out="s32", acc="s32", n=7),
    lt(*EITHER, reason="k: .*multiple of 4", a="s8", out="s32", acc="s32", k=1001),
    lt(*EITHER, reason="layout: ", a="s8", out="s32", acc="s32", layout="nn"),
    lt("refused", reason="scale: ", a="s8", out="s32", acc="s32", scale="tensor"),
    lt("refused", reason="epilogue: ", a="s8", out="s32", acc="s32", epilogue="bias"),
    lt("refused", reason="a: ", a="u8", b="s8", out="s32", acc="s32"),
    lt("refused", reason="b: ", a="bf16", b="f16", out="bf16"),
    lt("refused", reason="out: ", a="bf16", out="e4m3"),
    lt("refused", reason="acc: ", a="bf16", out="bf16", acc="f16"),
    *(lt("refused", reason=f"{dim}: .*2147483647", a="bf16", out="bf16", **{dim: 1 << bits})
      for dim, bits in (("batch", 31), ("m", 31), ("n", 31), ("k", 40))),
    lt("refused", reason="cap", a="bf16", out="bf16", n=1 << 20, k=1 << 14),
    lt("refused", reason="unsupported: .*to check", a="bf16", out="bf16", m=1, n=1 << 25, k=16),
    # Odd, and no more than that.
    lt(a="bf16", out="bf16", n=7, k=13),
    lt(a="bf16", out="bf16", workspace=1 << 40),
    lt(*EITHER, a="bf16", out="bf16", batch=1 << 17, m=1, n=16, k=16),
    Case("cudnn", product("bf16", "bf16", epilogue="bias", backend="cudnn"), ("refused",), "epilogue: "),
    Case("cudnn", product("bf16", "bf16", scale="tensor", backend="cudnn"), ("refused",), "scale: "),
    Case("cudnn", product("bf16", "bf16", n=1 << 31, backend="cudnn"), ("refused",), "n: "),
    Case("cudnn", product("bf16", "bf16", n=7, k=13, backend="cudnn"), EITHER),
    Case("cudnn", convolution(groups=3), ("refused",), "groups: "),
    Case("cudnn", convolution(size=8, r=14, pad=0), ("refused",), "r: "),
    Case("cudnn", convolution(n=1 << 31), ("refused",), "n: "),
    Case("cudnn", experts(top_k=16), ("refused",), "top_k: "),
    Case("cudnn", experts(local=16), ("refused",), "local_experts: "),
    Case("cudnn", experts(tokens=1 << 30, top_k=1), ("refused",), "tokens x top_k: "),
    Case("cudnn", experts(experts=(1 << 31) - 1), ("refused",), "experts: "),
    Case("cudnn", experts(mode="scatter", experts=16), ("refused",), "mode: "),
    Case("cudnn", experts(mode="scatter"), EITHER, "cuDNN"),
    Case("cudnn", experts(n=7, k=13), EITHER, "cuDNN"),
    Case("cudnn", experts(experts=896, local=896, n=6144, k=3584), ("refused",), "cap"),
]
SYSTEM = [Case("cudnn-system", experts(), EITHER, "mixture of experts|engines"),
          Case("cudnn-system", product("bf16", "bf16", n=512, k=512, backend="cudnn"), ("answered",))]
# The cap may be more than a card has.
BEYOND_CARD = {"memory_cap": "1TiB"}
CARD = [lt("refused", reason="the device has no more|no algorithm", a="bf16", out="bf16", n=1 << 20, k=1 << 17),
        Case("cudnn", product("bf16", "bf16", n=1 << 20, k=1 << 17, backend="cudnn"), ("refused",))]
GOOD = {"lt": SMALL["cublaslt"], "cudnn": product("bf16", "bf16", m=16, n=512, k=512, backend="cudnn")}
# Keys that name no problem.
NO_KEYS = [product("bf16", "bf16", **{dim: size}) for dim in ("batch", "m", "n", "k")
           for size in (0, (1 << 40) + 1, 1 << 64, "-1", "07")] + [
    product("bf16", "bf16", workspace=1 << 41), product("bf16", "bf16", epilogue="silu"), convolution(stride=0),
    experts(tokens=0), experts(mode="both")]


# --- what came of one ---

def label(key):
    op, *words = key.split(",")
    dims = dict(word.split("=", 1) for word in words)
    if op == "matmul":
        return ("{a}*{b}->{out} {acc} {layout} {batch}x{m}x{n}x{k} {epilogue} scale={scale} "
                "ws={workspace_bytes}").format(**dims)
    if op == "convolution":
        return "conv {a} {n}x{h}x{w}x{c} k={k} r={r} stride={stride} groups={groups}".format(**dims)
    return "moe {a}->{out} {mode} {tokens}x{top_k} of {local_experts}/{experts} n={n} k={k}".format(**dims)


def journal(d, sweep):
    """The lines of a sweep that has ended, as far as they are there."""
    path = d.dir / "state/journal" / f"{sweep}.jsonl"

    def whole():
        lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []
        return lines if lines and lines[-1]["say"] == "journal_end" else None

    try:
        return d.wait_for(whole, 5, f"the end of the journal of {sweep}")
    except Failure:
        return []


def read(explained, lines):
    """What a sweep came to, of what explain and its journal say."""
    answer, end = explained.get("answer", {}), lines[-1] if lines else {}
    refused = next((line for line in lines if line["say"] == "refused"), None)
    checked = {line["candidate"]: line for line in lines if line["say"] == "checked"}
    wrong = [line for line in checked.values() if not line["ok"]]
    row = {"verdict": end.get("verdict", "none"), "kind": answer.get("kind"), "state": answer.get("state"),
           "gain": answer.get("gain"), "name": answer.get("name"), "rounds": answer.get("rounds"),
           "candidates": next((len(line["candidates"]) for line in lines if line["say"] == "opened"), 0),
           "looked": len({line["candidate"] for line in lines if line["say"] == "looked"}), "checked": len(checked),
           "wrong": len(wrong), "first_wrong": {name: wrong[0].get(name) for name in ("max_error", "limit", "reason")}
           if wrong else None, "does_not_run": len([line for line in lines if line["say"] == "failed"]),
           "denied": len(explained.get("deny", ())),
           "native": {name: checked[0].get(name) for name in ("ok", "max_error", "limit", "repeatable", "reason")}
           if 0 in checked else None, "max_error": answer.get("max_error"),
           "refused": f"{refused['reason']}: {refused['detail']}" if refused else None,
           "why": end.get("detail") or explained.get("history") or explained.get("sentence")}
    is_answered = (row["verdict"] in ("hit", "default", "noisy") and row["kind"] in ("hit", "default") and
                   row["state"] in ("confirmed", "noisy"))
    return {"came": "answered" if is_answered else "refused" if refused else "failed", **row}


def trouble(case, row):
    """What is wrong with it, in the daemon's words, or None."""
    if row["came"] not in case.may:
        return f"{row['came']}, not {' or '.join(case.may)}: {row['why']}"
    if row["came"] == "refused" and not re.search(case.reason, row["refused"]):
        return f"refused for another reason than '{case.reason}': {row['refused']}"
    return None


def figure(value):
    return "?" if value is None else f"{value:.2g}"


def speak(case, row, wrong):
    native = row["native"]
    judged = (f"; native error {figure(native['max_error'])} of {figure(native['limit'])}"
              f"{'' if native['repeatable'] else ', not repeatable'}" if native else "")
    if row["came"] == "answered":
        said = (f"{row['kind']} {(row['gain'] or 0) * 100:.1f} % {row['state']}, {row['candidates']} candidates, "
                f"{row['checked']} checked, {row['wrong']} wrong, {row['does_not_run']} do not run, "
                f"{row['denied']} denied")
    else:
        said = f"{row['came']}: {row['why']}"
    print(f"  {'NOT OK ' if wrong else ''}{case.section} {label(case.key)}: {said}{judged}; {row['seconds']} s", flush=True)
    if row["first_wrong"]:
        first = row["first_wrong"]
        print(f"    wrong: {first['reason']} (error {figure(first['max_error'])} of {figure(first['limit'])})", flush=True)
    if wrong:
        print(f"    {wrong}", flush=True)


class Asked:
    """Sweeps that were asked for, one after another; what went wrong is kept to the end."""

    def __init__(self, room, d):
        self.room, self.d, self.rows, self.wrong = room, d, [], []

    def ask(self, case):
        begun, seconds = time.monotonic(), min(PROBLEM_S, self.room.left())
        if seconds < 1:
            self.wrong.append(f"{label(case.key)}: not asked, the time was over")
            return None
        late = None
        try:
            self.d.tunectl("sweep", case.key, "--as", case.section, "--wait", "--force", timeout=seconds)
        except subprocess.TimeoutExpired:
            late = f"no verdict within {seconds:.0f} s"
        explained = self.d.tunectl("explain", case.key, "--as", case.section)[1] or {}
        sweep = re.match(r"sweep (\S+): ", explained.get("history", ""))
        row = read(explained, journal(self.d, sweep[1]) if sweep and not late else [])
        row = {"section": case.section, "key": case.key, **row, "seconds": round(time.monotonic() - begun, 2)}
        if late:
            row["why"] = late
        wrong = trouble(case, row)
        speak(case, row, wrong)
        if wrong:
            self.wrong.append(f"{case.section} {label(case.key)}: {wrong}")
        self.rows.append(row)
        return row

    def ask_all(self, cases):
        for case in cases:
            self.ask(case)
            self.room.note(problems=self.rows, wrong=self.wrong)

    def note(self, condition, *words):
        if not condition:
            self.wrong.append(" ".join(str(word) for word in words))
            print("  NOT OK " + self.wrong[-1], flush=True)
            self.room.note(wrong=self.wrong)

    def end(self):
        came = collections.Counter(row["came"] for row in self.rows)
        self.room.note(problems=self.rows, wrong=self.wrong, came=came)
        print(f"  {dict(came)}", flush=True)
        return [f"{len(self.wrong)} of {len(self.rows)} are not as they should be", *self.wrong] if self.wrong else []


def scripted(cases):
    """{section: words}: a scripted worker that refuses what a GPU's would."""
    words = collections.defaultdict(list)
    for case in cases:
        if "refused" in case.may:
            words[case.section].append(f"{'too_large' if 'cap' in case.reason else 'without'}={case.key}")
    return words


def unexplained(case):
    return case._replace(reason="")  # a scripted worker has one reason for all


# --- steps ---

def step_kinds(room, *words):
    """One small problem of every kind that the workers claim; `words` choose those whose line holds them all."""
    cases = [case for case in KINDS if all(word in f"{case.section} {label(case.key)}" for word in words)]
    expect(cases, "no problem has these words", words)
    sections = {name: options for name, options in room.sections(scripted(cases)).items()
                if any(case.section == name for case in cases)}
    with room.daemon(sections) as d:
        room.wait_ready(d, sections)
        asked = Asked(room, d)
        asked.ask_all(cases)
        wrong = asked.end()
        expect(not wrong, *(wrong or [""]))


def counters(d, *names):
    return {c["name"]: c["value"] for c in d.status()["counters"] if c["name"] in names}


TRIED = ("sweeps_started", "sweeps_failed", "worker_starts", "candidates_denied", "candidates_rejected")


def check_quiet(asked, cases):
    """Asks for all once more, as servers do: nobody tries them again, and who asks is answered at once."""
    d = asked.d

    def is_settled():
        # A fault that may pass, such as memory, is tried again after a minute; that is not meant here.
        rows = d.status()["sweeps"]
        return all(row["phase"] == "queued" and row.get("retry_s", 0) > QUIET_S + 1 for row in rows)

    d.wait_for(is_settled, 15, "the end of all that was asked for")
    before = counters(d, *TRIED)
    refused = {(row["section"], row["key"]) for row in asked.rows if row["came"] == "refused"}
    for case in cases:
        if (case.section, case.key) in refused:
            told = d.lookup(case.key, case.section) or {}
            asked.note(told.get("kind") == "miss" and told.get("next"), case.section, label(case.key),
                       "is asked for again and gets", told)
    time.sleep(QUIET_S)  # a second try would come in it
    after = counters(d, *TRIED)
    asked.note(before == after and is_settled(), "refused problems are tried again:", before, after, d.status()["sweeps"])
    asked.room.note(counters=after)


def check_keys(asked):
    """Keys that name no problem get a word for it at both doors, and no sweep."""
    before = counters(asked.d, *TRIED)
    for key in NO_KEYS:
        told = asked.d.lookup(key, "lt") or {}
        asked.note(told.get("reason") == "bad_key", "not a bad key:", key, told)
        code, said, _ = asked.d.tunectl("sweep", key, "--as", "lt")
        asked.note(code and "sentence" in (said or {}), "a bad key is swept:", key, code, said)
    asked.note(counters(asked.d, *TRIED) == before, "a bad key was swept")


def check_gone(asked):
    """A worker whose library is not there: said so, and not started again and again."""
    d, row = asked.d, next(row for row in asked.d.status()["workers"] if row["section"] == "gone")
    print(f"  a library that is not there: {row['state']}: {row.get('detail')}", flush=True)
    asked.room.note(gone=row)
    asked.note(row["state"] == "failed" and (asked.room.is_dry or GONE in row.get("detail", "")),
               "a worker without its library:", row)
    code, said, _ = d.tunectl("sweep", GOOD["lt"], "--as", "gone")
    asked.note(code and "sentence" in (said or {}), "it is given work:", code, said)


def good(asked, *names):
    for name in names:
        asked.ask(Case(name, GOOD[name], ("answered",)))


def step_badinput(room):
    """What no library can do, or nobody should ask for: refused once, in words, and nobody else notices."""
    sections = room.all_sections(scripted([*CANNOT, *SYSTEM]))
    words = ("hello=exit:69",) if room.is_dry else ()
    gone = room.section("cublaslt", GONE, words=words, name="gone")
    cases = [case for case in [*CANNOT, *SYSTEM] if case.section in sections]
    fit = unexplained if room.is_dry else lambda case: case
    room.note(system_cudnn="cudnn-system" in sections)
    with room.daemon({**sections, "gone": gone}) as d:
        room.wait_ready(d, sections)
        d.wait_ready("gone", room.left())
        asked = Asked(room, d)
        check_gone(asked)
        check_keys(asked)
        good(asked, "lt")
        asker = Asker(d, "lt", GOOD["lt"])
        for section in sections:
            asked.ask_all([fit(case) for case in cases if case.section == section])
            if section in GOOD:
                good(asked, section)
        found = asker.end()
        room.note(asker=found)
        print(f"  asked {found}", flush=True)
        asked.note(found["failed"] == 0 and set(found["kinds"]) <= {"hit", "default"} and found["lookups"] > 10,
                   "lookups failed meanwhile:", found)
        asked.note(room.is_dry or found["slowest_ms"] < LOOKUP_MS, "a lookup waited for it:", found)
        check_quiet(asked, cases)
        good(asked, "lt")
    sections = room.sections(scripted(CARD))
    with room.daemon(sections, **BEYOND_CARD) as d:
        room.wait_ready(d, sections)
        asked.d = d
        asked.ask_all([fit(case) for case in CARD])
        check_quiet(asked, CARD)
        good(asked, "lt")
    wrong = asked.end()
    expect(not wrong, *(wrong or [""]))
