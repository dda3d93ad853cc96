# SPDX-License-Identifier: Apache-2.0
"""Which tokens go to which experts, drawn from a seed: daemon/workers/routing.c once more, draw for draw, so that every
worker of a node times mixtures of experts on the same routing. A test holds both to the same rows. Skewed as trained
routers are, over all experts; this device has the first few of them, so what lands here is a matter of chance.

Knows no library and no device: lists of int and float.
"""
import bisect
import itertools

from tacticd.worker import inputs

SKEW = 0.35  # routing.h's ROUTING_SKEW: popularity falls as rank^-SKEW
MAX_DRAWS = 16  # as in routing.c: then the next expert that is free


def _popular(experts, seeds):
    """Sums of popularity up to each expert. Popular ones lie anywhere."""
    shares = [(i + 1) ** -SKEW for i in range(experts)]
    for i in range(experts, 1, -1):
        other = seeds.next() % i
        shares[i - 1], shares[other] = shares[other], shares[i - 1]
    return list(itertools.accumulate(shares))


def _draw(upto, seeds):
    at = (seeds.next() >> 11) * 2.0 ** -53 * upto[-1]
    return min(bisect.bisect_right(upto, at), len(upto) - 1)


def _choose(upto, top_k, seeds):
    """One token's experts, in the order of its slots."""
    chosen = {}
    for _ in range(top_k):
        expert = _draw(upto, seeds)
        for _ in range(MAX_DRAWS):
            if expert not in chosen:
                break
            expert = _draw(upto, seeds)
        while expert in chosen:
            expert = (expert + 1) % len(upto)
        chosen[expert] = True
    return list(chosen)


def seed_of(tokens, top_k, experts, local_experts):
    """The seed of a problem's routing, by its shape alone: routing.c's routing_seed."""
    seed = 0
    for part in (tokens, top_k, experts, local_experts):
        seed = inputs.Seeds(seed ^ part).next()
    return seed


def draw(tokens, top_k, experts, local_experts, seed):
    """[tokens][top_k] experts, each token's distinct. top_k <= experts, 1 <= local_experts <= experts; at least one
    token meets one of the first local_experts, or there would be no problem to time."""
    if not 0 < top_k <= experts or not 0 < local_experts <= experts:
        raise ValueError(f"{top_k} of {experts} experts, {local_experts} of them here")
    seeds = inputs.Seeds(seed)
    upto = _popular(experts, seeds)
    chosen = [_choose(upto, top_k, seeds) for _ in range(tokens)]
    if not any(expert < local_experts for of_token in chosen for expert in of_token):
        chosen[0][-1] = 0
    return chosen


def rows(chosen, local_experts):
    """(expert, token, slot) of what lands here, by expert and then by token: the rows of struct routing."""
    return sorted((expert, token, slot) for token, of_token in enumerate(chosen)
                  for slot, expert in enumerate(of_token) if expert < local_experts)


def scales(tokens, top_k, seed):
    """[tokens][top_k] factors of the experts' results, positive, each token's falling and 1 together: what a router's
    softmax gives. The C workers time single products, and have none."""
    seeds = inputs.Seeds(seed)
    out = []
    for _ in range(tokens):
        shares = sorted(((seeds.next() >> 11) * 2.0 ** -53 + 0.25 for _ in range(top_k)), reverse=True)
        whole = sum(shares)
        out.append([share / whole for share in shares])
    return out
