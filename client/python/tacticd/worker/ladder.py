# SPDX-License-Identifier: Apache-2.0
"""The token counts that a list of candidates is asked at. Libraries gate their lists by the number of tokens and so
hide tactics that would be legal, and sometimes best (docs/decisions/0009, section 4): asked at the bucket, at its
neighbours in FlashInfer's ladder and at the ladder's ends, and joined."""

LAST = 8192  # tune_max of most servers


def hybrid(tune_max=LAST):
    """FlashInfer's buckets: powers of two to 256, every 256 to 2,048, every 512 to 4,096, powers of two after, the last
    one tune_max: the same as ladder_make's of proto/ladder.c."""
    steps = [1 << i for i in range(9)] + list(range(512, 2049, 256)) + list(range(2560, 4097, 512))
    while steps[-1] < tune_max:
        steps.append(2 * steps[-1])
    return [n for n in steps if n < tune_max] + [tune_max]


def asked_at(tokens):
    """Token counts, the bucket itself first, then its neighbours, then the ends; each once."""
    ladder = hybrid(max(LAST, 2 * tokens))
    below = [n for n in ladder if n < tokens][-1:]
    above = [n for n in ladder if n > tokens][:1]
    return list(dict.fromkeys([tokens, *below, *above, 1, LAST]))
