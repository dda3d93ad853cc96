# SPDX-License-Identifier: Apache-2.0
"""One table for all ranks, or none for anybody.

Ranks that run different tactics of a collective kernel compute different things, or wait for each other
forever. So rank 0 fetches, everybody gets its bytes and checks them against its own node, and all compare
what they hold. Whatever goes wrong anywhere, every rank comes to the same end: use the library's default.
"""
import collections
import logging

from tacticd.answers import TacticError
from tacticd.client import Client
from tacticd.table import Table

log = logging.getLogger("tacticd")
SHOWN = 4  # ranks whose reasons are told
# Reasons of a miss that say more than that nobody swept it, the most telling first.
TELLING = ("fingerprint_conflict", "denied", "stale", "unconfirmed", "other_device")


class Refusal(Exception):
    """Why there is no table, in a sentence for people."""


def sentence_of(error):
    """Any exception in words."""
    if isinstance(error, (Refusal, TacticError)):
        return str(error)
    return f"{type(error).__name__}: {error}"


def attempt(function, *arguments):
    """(what it returns, None) or (None, why it failed). Lets KeyboardInterrupt and SystemExit pass."""
    try:
        return function(*arguments), None
    except Exception as e:
        return None, sentence_of(e)


def reason_of_nothing(client, recipe, layout, total):
    """Why a table of a recipe is empty: the most telling reason of its problems' misses, else the most frequent,
    with what the daemon says of it. One deadline more."""
    said = f"{recipe}, {layout}: 0 of {total} problems are answered"
    keys, unread = attempt(lambda: client.recipe_problems(recipe, layout)[:64])
    if not keys:
        return f"{said}; why is not known here ({unread}): ask the node with tunectl status"
    answers, _ = attempt(client.lookup_many, keys)
    misses = [a for a in answers or () if a.reason]
    if not misses:
        return said
    reasons = collections.Counter(a.reason for a in misses)
    reason = next((r for r in TELLING if r in reasons), reasons.most_common(1)[0][0])
    miss = next(a for a in misses if a.reason == reason)
    return f"{said}: {reason}: {miss.sentence}" + (f"; cure: {miss.command}" if miss.command else "")


def fetch_table(client, recipe, layout, wait_ms):
    """The table, with at least one answer in it. Raises TacticError or Refusal."""
    table = client.table(recipe, layout, wait_ms)
    if not table.covered:
        raise Refusal(reason_of_nothing(client, recipe, layout, table.total))
    return table


def check_table(client, table):
    """May this process, on this node, use a table that another node's daemon gave out? The node's own daemon
    must be there and deny nothing of it, and the facts must be the same. Raises TacticError or Refusal."""
    for fact, there in sorted(table.header["fingerprint"].items()):
        here = client.fingerprint_get(fact) if there not in (None, "", "*") else there
        if here != there:
            raise Refusal(f"{fact} is {here or 'unknown'} here, the table holds for {there}")
    for answer in client.lookup_many(table.keys()):
        if answer.reason == "denied":
            raise Refusal(f"this node denies it: {answer.key}: {answer.sentence}")


# --- the exchange ---


def _offer(rank, fetch):
    """What rank 0 has to give, in types that any transport carries; the others say None."""
    if rank != 0:
        return None
    table, why = attempt(fetch)
    if table is None:
        return {"why": why}
    return {"text": table.text, "digest": table.digest, "covered": table.covered, "total": table.total}


def _take(offer):
    if not isinstance(offer, dict):
        raise Refusal("what was broadcast is no offer of rank 0")
    if "text" not in offer:
        raise Refusal(str(offer.get("why")))
    table = Table.read(offer["text"], offer["digest"])
    table.covered, table.total = int(offer["covered"]), int(offer["total"])
    return table


def judge(votes, world_size):
    """Why the ranks do not agree, None if they do. Deterministic: each rank judges the same votes."""
    known = {v["rank"]: v for v in votes if isinstance(v, dict) and {"rank", "digest", "why"} <= v.keys()}
    if len(votes) != world_size or sorted(known) != list(range(world_size)):
        return f"{len(known)} of {world_size} ranks were heard"
    failed = [v for _, v in sorted(known.items()) if v["why"]]
    if failed:
        more = len(failed) - SHOWN
        return "; ".join(f"rank {v['rank']}: {v['why']}" for v in failed[:SHOWN]) + (
            f"; and {more} ranks more" if more > 0 else "")
    digests = collections.Counter(str(v["digest"])[:64] for v in known.values())
    if len(digests) > 1:
        return "the ranks hold " + ", ".join(f"{d[:12]} ({n} of them)" for d, n in sorted(digests.items())[:SHOWN])
    return None


def verdict(all_gather, rank, world_size, table, why):
    """This rank's vote, a table or why not, and everybody's verdict: None, or why they do not agree."""
    vote = {"rank": rank, "digest": table.digest if table is not None else None, "why": why}
    votes, lost = attempt(lambda: list(all_gather(vote)))
    apart, broken = attempt(judge, votes, world_size) if lost is None else (None, None)
    return lost or broken or apart


def exchange(broadcast, all_gather, rank, world_size, fetch, check):
    """(table, None) or (None, why): the same on each rank. `fetch()` is called on rank 0, `check(table)` on
    every rank; both may raise. One broadcast and one all_gather on every path."""
    offer, why = attempt(broadcast, _offer(rank, fetch))
    table = None
    if why is None:
        table, why = attempt(_take, offer)
    if why is None:
        _, why = attempt(check, table)
    why = verdict(all_gather, rank, world_size, table, why)
    return (table, None) if why is None else (None, why)


def agreed_table(broadcast, all_gather, rank, world_size, recipe, layout=None, *, client=None, wait_ms=0):
    """The table that all ranks hold, or None on all of them, with one warning that says why.

    broadcast(obj) -> obj   the caller's collective: rank 0's object on every rank; the others pass None. The
                            object is a dict of bytes, text and numbers, at most 16 MiB, or a dict with why not.
    all_gather(obj) -> list the caller's collective: everybody's object, world_size of them, in any order
    recipe, layout          as Client.table takes them
    client                  a Client without a job (a job is known to one node's daemon), or a function that makes
                            one; default: Client
    wait_ms                 rank 0's daemon may hold the table back so long, until it is whole

    Each rank checks the table on its own node: its daemon must answer, must not deny a problem of it, and the
    facts that the table depends on must be the process's own. A rule of a node's daemon is seen only where it leaves
    that daemon without an answer of its own. Never raises, and does not wait beyond the clients' deadlines;
    how long the two collectives wait for a rank is the caller's affair. Calls each of them exactly once.
    """
    made = {}

    def mine():
        if "client" not in made:
            made["client"] = client() if callable(client) else client or Client()
        return made["client"]

    table, why = exchange(broadcast, all_gather, rank, world_size,
                          lambda: fetch_table(mine(), recipe, layout, wait_ms), lambda t: check_table(mine(), t))
    if "client" in made and made["client"] is not client:
        attempt(made["client"].close)
    if why:
        log.warning("rank %s: no table for any rank: %s", rank, why)
    return table
