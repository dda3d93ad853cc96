# SPDX-License-Identifier: Apache-2.0
"""Record: what FlashInfer's tuner was asked, and what it did not know. Stands in front of search_cache, which
0.6.16 and 0.7.x alike call for each choice, with the operation, the runners, the shapes, the tuning's
configuration and perhaps the inputs."""
import threading

MAX_KEYS = 4096  # noted; more are counted as dropped


class Record:
    """hits, misses   searches that found something, and that found nothing
    keys          (operation, key of FlashInfer's cache) of what was missed, each once, in order; a miss has a
                  key for each runner that could have served it
    dropped       keys that were too many to note
    named         keys that stand for a problem here; `unnamed` those that do not
    wanted        what became of the wish for them (tacticd.Wanted), None if there was none; `wanted_recipe`
                  the same of the whole recipe
    failed        why something is missing here, None if nothing failed
    """

    def __init__(self):
        self.hits = self.misses = self.dropped = self.named = self.unnamed = 0
        self.keys = []
        self.wanted = self.wanted_recipe = self.failed = None
        self._known = set()
        self._lock = threading.Lock()
        self._tuner = self._wrapper = self._before = None

    def counts(self):
        """All numbers, as a dict."""
        return {"hits": self.hits, "misses": self.misses, "keys": len(self.keys), "dropped": self.dropped,
                "named": self.named, "unnamed": self.unnamed, "wanted": self.wanted and self.wanted._asdict(),
                "wanted_recipe": self.wanted_recipe and self.wanted_recipe._asdict()}

    # --- standing in front ---

    def attach(self, tuner):
        """Puts itself before the tuner's search_cache."""
        original = tuner.search_cache

        def search_cache(*args, **kwargs):
            try:
                found = original(*args, **kwargs)
            except Exception:  # strict replay raises what it does not find
                self._note(tuner, False, args, kwargs)
                raise
            self._note(tuner, found, args, kwargs)
            return found

        self._before = tuner.__dict__.get("search_cache")
        self._tuner, self._wrapper = tuner, search_cache
        tuner.search_cache = search_cache

    def detach(self):
        """Leaves the tuner as it was. If somebody else stands in front meanwhile, they stay, and this one only
        stops noting."""
        tuner, self._tuner = self._tuner, None
        if tuner is None or tuner.__dict__.get("search_cache") is not self._wrapper:
            return
        if self._before is None:
            del tuner.search_cache
        else:
            tuner.search_cache = self._before

    # --- noting ---

    def _note(self, tuner, found, args, kwargs):
        if self._tuner is None:
            return
        try:
            hit = bool(found and found[0])
            with self._lock:
                self.hits += hit
                self.misses += not hit
            if not hit:
                self._note_miss(tuner, *args, **kwargs)
        except Exception as e:  # the caller has FlashInfer's answer, and nothing to do with this
            self.failed = self.failed or f"{type(e).__name__}: {e}"

    def _note_miss(self, tuner, custom_op, runners, input_shapes, tuning_config, inputs=None, **_):
        for runner in runners:
            extras = runner.get_cache_key_extras(inputs) if inputs is not None else ()
            asked = (custom_op, type(runner).__name__, input_shapes, extras)
            if asked in self._known or self._is_full():
                continue
            key = (custom_op, tuner._get_cache_key(custom_op, runner, input_shapes, tuning_config, extras).file_key)
            with self._lock:
                self._known.add(asked)
                if key not in self._known:
                    self._known.add(key)
                    self.keys.append(key)

    def _is_full(self):
        # Shapes are as they came, so many of them may share a key.
        with self._lock:
            full = len(self.keys) >= MAX_KEYS or len(self._known) >= 8 * MAX_KEYS
            self.dropped += full
        return full
