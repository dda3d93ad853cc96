# SPDX-License-Identifier: Apache-2.0
"""A tuner that knows nothing: the first runner, and the fallback."""


class AutoTuner:
    _instance = None

    @classmethod
    def get(cls):
        cls._instance = cls._instance or cls()
        return cls._instance

    def choose_one(self, custom_op, runners, tuning_config, inputs, **kwargs):
        return runners[0], -1

    def clear_cache(self):
        pass


def _collect_metadata():
    return {"flashinfer_version": "0.6.16", "cuda_version": "13.0", "cublas_version": "13.1.0", "cudnn_version": "91900",
            "cudnn_frontend_version": "1.32.0", "gpu": "Look Alike 3000"}
