# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's autotuner fed from this node's tacticd, for servers (TokenSpeed, SGLang, vLLM) at their start.

    import tacticd.flashinfer

    if not tacticd.flashinfer.seed_flashinfer("kimi-k3", ep=8, tp=1):
        ...                                    # tune as before, or use FlashInfer's defaults

Every function here ends in True or False (or None), never in an exception but KeyboardInterrupt and SystemExit.
What went wrong is one warning of the logger "tacticd", with the facts that differ and the command that cures it
where there is one. Each call of the daemon has a deadline; where the daemon is away nothing waits.

A recipe is a model's name, its layout is ep=<ep>,tp=<tp>. The environment is that of the process: what
FlashInfer's own _collect_metadata says.
"""
import contextlib
import functools
import json
import logging
import os
import shutil
import tempfile

from tacticd import agree, cachefile
from tacticd.agree import Refusal, attempt, sentence_of
from tacticd.answers import Error, TacticError
from tacticd.client import Client
from tacticd.recorder import Record

log = logging.getLogger("tacticd")
MAX_LOOKUPS = 65536  # of one message
TIMEOUT_MS = 2000  # of a call here: many ranks start at once, and a start has time that a request has not


# --- FlashInfer, as it is loaded ---


def _autotuner():
    """FlashInfer's module. Raises Refusal."""
    try:
        from flashinfer import autotuner

        return autotuner
    except Exception as e:  # whatever its import meets
        raise Refusal(f"FlashInfer cannot be imported: {sentence_of(e)}") from e


def _metadata():
    collected = getattr(_autotuner(), "_collect_metadata", None)
    if collected is None:
        raise Refusal("this FlashInfer does not tell its environment (no _collect_metadata)")
    return dict(collected())


def metadata():
    """The environment as FlashInfer writes it into its cache files: a dict of texts. None if FlashInfer cannot
    be imported or does not tell."""
    return attempt(_metadata)[0]


def _tuner():
    return _autotuner().AutoTuner.get()


# --- the errand ---


def _never_raises(what):
    """Whatever goes wrong is one warning and False."""

    def wrap(function):
        @functools.wraps(function)
        def run(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            except Exception as e:
                log.warning("%s: %s", what, sentence_of(e))
                return False

        return run

    return wrap


def _layout(ep, tp):
    return f"ep={ep},tp={tp}"


def _quiet(level, sentence):
    log.debug("libtactic: %s", sentence)


@contextlib.contextmanager
def _asking(client, found, job=None, rank=None, timeout_ms=TIMEOUT_MS, confirmed=False):
    """The caller's client, or one for this errand, in the environment that FlashInfer found."""
    own = Client(job=job, rank=rank, timeout_ms=timeout_ms, confirmed=confirmed, log=_quiet) if client is None else None
    try:
        (client or own).fingerprint_flashinfer(found)
        yield client or own
    finally:
        if own is not None:
            own.close()


def _fetch(model, ep, tp, found, client, wait_ms, **options):
    """The table, with at least one answer in it. Raises."""
    layout = _layout(ep, tp)
    with _asking(client, found, **options) as asking:
        table = asking.table(model, layout, wait_ms)
    if not table.covered:
        # Without the job: its snapshot knows that nothing is there, and not why.
        with _asking(client, found, **{**options, "job": None}) as asking:
            raise Refusal(agree.reason_of_nothing(asking, model, layout, table.total))
    if table.warning:
        log.warning("%s, %s: %s", model, layout, table.warning)
    return table


@contextlib.contextmanager
def _keeping_records(tuner):
    """load_configs of 0.7 forgets the records of namespaces that other files brought; they stay."""
    records = dict(getattr(tuner, "_namespaced_records", None) or {})
    dirty = set(getattr(tuner, "_dirty_namespaces", None) or ())
    yield
    if records:
        tuner._namespaced_records = {**records, **tuner._namespaced_records}
        tuner._dirty_namespaces |= dirty


def _load(table, found):
    """Has FlashInfer's tuner load the table's answers. Returns the keys that it took. Raises."""
    tuner, text = _tuner(), table.flashinfer(found)
    folder = tempfile.mkdtemp(prefix="tacticd-")
    try:
        path = os.path.join(folder, "flashinfer.json")
        with open(path, "xb") as file:
            file.write(text)
        with _keeping_records(tuner):
            taken = tuner.load_configs(path)
        if taken is not True:
            hard, soft = cachefile.differing(json.loads(text).get(cachefile.METADATA), metadata() or {})
            words = cachefile.words({**hard, **soft})
            raise Refusal("FlashInfer does not take the file" + (f": {words}" if words else "; its log says why"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    keys, known = list(cachefile.entries(text)), getattr(tuner, "_file_configs", None)
    taken = keys if known is None else [key for key in keys if key in known]
    if not taken:
        raise Refusal(f"FlashInfer took the file and none of its {len(keys)} entries")
    log.info("FlashInfer has %d of %d entries, %d of %d problems, table %.12s", len(taken), len(keys), table.covered,
             table.total, table.digest)
    return taken


@_never_raises("FlashInfer is not seeded")
def seed_flashinfer(model, ep, tp, job=None, rank=None, wait_ms=0, client=None, *, timeout_ms=TIMEOUT_MS,
                    confirmed=False, table=None):
    """Loads the daemon's answers for a model into this process's FlashInfer. True only if FlashInfer took them
    and there is at least one.

    job, rank    name of the job whose ranks must agree, and this process's rank in it
    wait_ms      the daemon may hold the answer back so long, until all problems are answered
    client       ask with this Client; it states FlashInfer's facts on it. Else one is made, with timeout_ms
    timeout_ms   deadline of each call of the daemon, at most two of them
    confirmed    only what was swept and checked by a daemon, nothing that was imported
    table        take this Table (of agreed_table) and do not ask
    """
    found = _metadata()
    if table is None:
        table = _fetch(model, ep, tp, found, client, wait_ms, job=job, rank=rank, timeout_ms=timeout_ms,
                       confirmed=confirmed)
    _load(table, found)
    return True


# --- files ---


def _named(asking, keys, model, layout):
    """{problem: keys of FlashInfer's that stand for it}, in order, of the keys that have a name here."""
    problems = {}
    for key in keys:
        try:
            problems.setdefault(asking.flashinfer_problem(key, model, layout), []).append(key)
        except TacticError as e:
            if e.code not in (Error.NOT_FOUND, Error.REFUSED):
                raise
    return problems


def _denied(asking, keys, model, layout):
    """Those of FlashInfer's keys whose answer the daemon denies."""
    problems = _named(asking, keys, model, layout)
    names, found = list(problems), []
    unnamed = len(keys) - sum(map(len, problems.values()))
    if unnamed:
        log.info("%s, %s: %d entries that were there have no name here; whether they are denied is not known",
                 model, layout, unnamed)
    for at in range(0, len(names), MAX_LOOKUPS):
        some = names[at:at + MAX_LOOKUPS]
        for name, answer in zip(some, asking.lookup_many(some)):
            if answer.reason == "denied":
                found += problems[name]
    return found


def _withdraw(held, remove, model, ep, tp, ask, table):
    """Has remove(keys) take out those of `held`, keys that stand in a file or a store already, that the daemon
    denies: they may be older than the rule. With a table in hand nothing else needs the daemon, so that one
    which is away is no more than a warning; else it raises."""
    if not held:
        return
    layout = _layout(ep, tp)
    try:
        with ask() as asking:
            keys = _denied(asking, held, model, layout)
    except TacticError as e:
        if table is None:
            raise
        log.warning("%s, %s: whether this node denies entries that were there is not known: %s", model, layout, e)
        return
    if keys:
        remove(keys)
        log.warning("%s, %s: taken out, because this node denies them: %d entries that were there", model, layout,
                    len(keys))


@_never_raises("no cache file is written")
def materialize(path, model, ep, tp, job=None, rank=None, wait_ms=0, client=None, *, overwrite=False,
                timeout_ms=TIMEOUT_MS, confirmed=False, table=None, metadata=None):
    """Writes the daemon's answers for a model to `path`, for autotune(cache=path). True if the file holds at
    least one of them.

    A file that is there is treated as FlashInfer's save_configs treats it: of the same environment, its other
    entries stay; of an environment that its writer could not tell, it is replaced; of another one, with
    definite values that differ, it stays as it is and False comes back. Entries of the model that the daemon
    denies go, whatever becomes of the rest. overwrite=True replaces whatever is there.

    metadata: the environment of the process that will read it, a dict; default: this process's own.
    The other arguments are seed_flashinfer's.
    """
    found = dict(metadata) if metadata is not None else _metadata()
    path = os.fspath(path)
    if not overwrite:
        _withdraw(cachefile.held_keys(path, found), functools.partial(cachefile.remove, path), model, ep, tp,
                  functools.partial(_asking, client, found, timeout_ms=timeout_ms), table)
    if table is None:
        table = _fetch(model, ep, tp, found, client, wait_ms, job=job, rank=rank, timeout_ms=timeout_ms,
                       confirmed=confirmed)
    text = table.flashinfer(found)
    cachefile.write(path, text if overwrite else cachefile.merged(path, text, found))
    log.info("%s holds %d of %d problems, table %.12s", path, table.covered, table.total, table.digest)
    return True


def _default_root():
    try:
        from flashinfer import autotune_cache

        return autotune_cache.get_default_cache_root()
    except Exception as e:
        raise Refusal(f"this FlashInfer has no autotune_v2: {sentence_of(e)}") from e


@_never_raises("no autotune_v2 store is written")
def install_v2(model, ep, tp, root=None, job=None, rank=None, wait_ms=0, client=None, *, measurement_policy=None,
               timeout_ms=TIMEOUT_MS, confirmed=False, table=None, metadata=None):
    """Writes the daemon's answers for a model as a store, for autotune_v2(mode="replay", cache_root=root). True
    if it holds at least one of them.

    root                default: environment FLASHINFER_AUTOTUNE_CACHE_DIR, else FlashInfer's own default
    measurement_policy  the MeasurementPolicy that autotune_v2 will be given: it is part of a store's identity

    Entries of the store are replaced one by one, others stay but those of the model that the daemon denies. A
    process that has attached the store before calls FlashInfer's autotune_v2_reload. The entries carry no
    profiling policy unless they were imported with one, so strict_replay does not take them. The other arguments
    are materialize's.
    """
    found = dict(metadata) if metadata is not None else _metadata()
    if root is None:
        root = os.environ.get("FLASHINFER_AUTOTUNE_CACHE_DIR") or _default_root()
    if measurement_policy is not None:
        found.update(measurement_policy.manifest_fields())
    held = cachefile.store_entries(root, found)
    _withdraw(held, lambda keys: [held[key].unlink(missing_ok=True) for key in keys], model, ep, tp,
              functools.partial(_asking, client, found, timeout_ms=timeout_ms), table)
    if table is None:
        table = _fetch(model, ep, tp, found, client, wait_ms, job=job, rank=rank, timeout_ms=timeout_ms,
                       confirmed=confirmed)
    os.makedirs(root, exist_ok=True)
    table.flashinfer_store(root, found)
    log.info("%s holds %d of %d problems, table %.12s", root, table.covered, table.total, table.digest)
    return True


# --- ranks ---


def _agree(broadcast, all_gather, rank, world_size, model, ep, tp, wait_ms, client, options):
    """(table, environment, why) as agree.exchange; one broadcast and one all_gather on every path."""
    found, missing = attempt(_metadata)

    def fetch():
        if missing:
            raise Refusal(missing)
        return _fetch(model, ep, tp, found, client, wait_ms, rank=rank, **options)

    def check(table):
        if missing:
            raise Refusal(missing)
        with _asking(client, found, **{**options, "job": None}) as own:  # rank 0's daemon alone knows the job
            agree.check_table(own, table)
        table.flashinfer(found)  # it must be something that this FlashInfer can be given

    table, why = agree.exchange(broadcast, all_gather, rank, world_size, fetch, check)
    return table, found, why


def agreed_table(broadcast, all_gather, rank, world_size, model, ep, tp, job=None, wait_ms=0, client=None, *,
                 timeout_ms=TIMEOUT_MS, confirmed=False):
    """The table that all ranks hold, for seed_flashinfer(table=...), materialize or install_v2; or None on all
    of them, with one warning that says why. See tacticd.agreed_table for what is asked of the two collectives,
    each of which is called exactly once, and for what is checked."""
    options = {"job": job, "timeout_ms": timeout_ms, "confirmed": confirmed}
    table, _, why = _agree(broadcast, all_gather, rank, world_size, model, ep, tp, wait_ms, client, options)
    if why:
        log.warning("rank %s: no table for any rank: %s", rank, why)
    return table


def seed_agreed(broadcast, all_gather, rank, world_size, model, ep, tp, job=None, wait_ms=0, client=None, *,
                timeout_ms=TIMEOUT_MS, confirmed=False):
    """agreed_table and seed_flashinfer in one: True on all ranks if FlashInfer took the same table on all of
    them, else False on all of them, and where it was taken it is taken out again. One broadcast and two
    all_gathers on every path."""
    options = {"job": job, "timeout_ms": timeout_ms, "confirmed": confirmed}
    table, found, why = _agree(broadcast, all_gather, rank, world_size, model, ep, tp, wait_ms, client, options)
    keys, failed = attempt(_load, table, found) if table is not None else (None, why)
    apart = agree.verdict(all_gather, rank, world_size, table if keys else None, failed)
    why = why or apart
    if why is None:
        return True
    if keys:
        attempt(_forget, keys)
    log.warning("rank %s: FlashInfer is seeded on no rank: %s", rank, why)
    return False


def _forget(keys):
    tuner = _tuner()
    for members in ("_file_configs", "_file_config_policies", "_file_config_selections"):
        for key in keys:
            getattr(tuner, members, {}).pop(key, None)


# --- what is missing ---


@contextlib.contextmanager
def record(model, ep, tp, client=None, *, timeout_ms=TIMEOUT_MS):
    """Notes what FlashInfer's tuner is asked inside, and at the end asks the daemon to sweep what it missed.

        with tacticd.flashinfer.record("kimi-k3", ep=8, tp=1) as seen:
            warm_up()
        print(seen.counts())

    Works by standing in front of AutoTuner.get().search_cache, in the with block only; the tuner is left as it
    was, whatever happens inside. A hit costs a lock and a sum; a miss its key, once. Problems that have a name
    here are wished for one by one; for keys that have none the whole recipe is. Failures are one warning and
    show in `seen.failed`; nothing is raised here. `seen` is a Record.
    """
    seen = Record()
    tuner, why = attempt(_tuner)
    if why is None:
        _, why = attempt(seen.attach, tuner)
    try:
        yield seen
    finally:
        seen.detach()
        if why is None:
            _, why = attempt(_wish, seen, model, ep, tp, client, timeout_ms)
        if why is not None:
            seen.failed = why
        if seen.failed is not None:
            log.warning("what FlashInfer missed is not wished for, or not all of it: %s", seen.failed)


def _wish(seen, model, ep, tp, client, timeout_ms):
    if not seen.keys:
        return
    layout = _layout(ep, tp)
    with _asking(client, _metadata(), timeout_ms=timeout_ms) as asking:
        problems = _named(asking, [key for _, key in seen.keys], model, layout)
        seen.named = sum(map(len, problems.values()))
        seen.unnamed = len(seen.keys) - seen.named
        if problems:
            seen.wanted = asking.want(keys=problems)
        if seen.unnamed:
            seen.wanted_recipe = asking.want(model, layout)
