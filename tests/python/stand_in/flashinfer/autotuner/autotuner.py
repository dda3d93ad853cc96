# SPDX-License-Identifier: Apache-2.0
"""Stand-in for FlashInfer's tuner. What a test may set: ENVIRONMENT, what the process has; LOADS, what happens
when a file is loaded: "as it is", "no" (it is refused) or "error"; NEWER, search_cache as in 0.7.4."""
import json
import threading

ENVIRONMENT = {}
LOADS = "as it is"
NEWER = False


def _collect_metadata():
    return dict(ENVIRONMENT)


class TunableRunner:
    extras = ()

    def get_cache_key_extras(self, inputs):
        return self.extras


class MoERunner(TunableRunner):
    pass


class OtherRunner(TunableRunner):
    pass


class Key:
    def __init__(self, *fields):
        self.file_key = str(fields)


class AutoTuner:
    _instance = None

    def __init__(self):
        self._lock = threading.RLock()
        self._file_configs = {}
        self._namespaced_records, self._dirty_namespaces = {}, set()
        self.keys_made = 0

    @classmethod
    def get(cls):
        cls._instance = cls._instance or AutoTuner()
        return cls._instance

    def load_configs(self, path):
        if LOADS == "error":
            raise RuntimeError("the stand-in was told to fail")
        with open(path, encoding="utf-8") as file:
            held = json.load(file)
        saved = held.pop("_metadata", None)
        self._namespaced_records = held.pop("_records", {})
        self._dirty_namespaces.clear()
        if LOADS == "no" or (saved is not None and any(saved.get(k) not in (v, "*") for k, v in ENVIRONMENT.items())):
            return False
        self._file_configs.update((k, (v[0], v[1])) for k, v in held.items() if not k.startswith("_"))
        return True

    def _get_cache_key(self, custom_op, runner, input_shapes, tuning_config, extras=(), **_):
        """The bucket of a shape here: its first dimension rounded up to a power of two."""
        self.keys_made += 1

        def bucket(shape):
            return (1 << (shape[0] - 1).bit_length(), *shape[1:]) if len(shape) > 1 else shape

        return Key(custom_op, type(runner).__name__, tuple(bucket(s) for s in input_shapes), extras)

    def _search(self, custom_op, runners, input_shapes, tuning_config, inputs=None):
        with self._lock:
            for number, runner in enumerate(runners):
                extras = runner.get_cache_key_extras(inputs) if inputs is not None else ()
                key = self._get_cache_key(custom_op, runner, input_shapes, tuning_config, extras).file_key
                if key in self._file_configs:
                    return True, number, self._file_configs[key][1], None
            return False, 0, -1, None

    def search_cache(self, custom_op, runners, input_shapes, tuning_config, inputs=None, *,
                     require_profiling_policy=False, validation_profile=None):
        """0.6.16's has no keywords. A policy that is required here stands for strict replay: misses raise."""
        assert NEWER or not (require_profiling_policy or validation_profile)
        found = self._search(custom_op, runners, input_shapes, tuning_config, inputs)
        if require_profiling_policy and not found[0]:
            raise RuntimeError(f"strict replay: {custom_op} is missing")
        return found
