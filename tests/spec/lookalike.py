# SPDX-License-Identifier: Apache-2.0
"""FlashInfer cache files of our own making, laid out as FlashInfer lays out its own."""
import json

DEVICE = "Look Alike 3000"
BUCKETS = [1, 2, 4, 8, 16, 32, 64, 128, 256, *range(512, 2049, 256), *range(2560, 4097, 512), 8192]
LAYOUTS = {"ep=8,tp=1": (112, 3072), "ep=1,tp=8": (896, 384)}


def file_key(tokens, width=3584, hidden=3584):
    """The key of 0.6, which says nothing of the layout."""
    n = tokens
    return (f"('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', (({n}, {width}), (0,), ({n}, 16), ({n}, 16), "
            f"({n}, {hidden}), ({n}, {hidden // 32}), (0,), (0,)), ())")


def problem(tokens, layout, finalize="fused"):
    local, intermediate = LAYOUTS[layout]
    return (f"trtllm_fp4_moe,backend=flashinfer,act=mxfp8,weights=mxfp4,out=bf16,tokens={tokens},top_k=16,experts=896,"
            f"local_experts={local},shared_experts=0,hidden=3584,hidden_out=3584,intermediate={intermediate},"
            f"activation=situ,finalize={finalize},routing=precomputed,routing_method=none,weight_layout=major_k,"
            "shuffled=yes,packed=no,token_scale=none,lora=none")


def metadata(**facts):
    return {"flashinfer_version": "0.6.16", "cuda_version": "13.0", "cublas_version": "13.1.0", "cudnn_version": "91900",
            "cudnn_frontend_version": "1.26.0", "gpu": DEVICE, **facts}


def facts_of(meta):
    """What a process of that environment says of itself."""
    names = {"flashinfer_version": "flashinfer", "cuda_version": "cuda", "cublas_version": "cublas",
             "cudnn_version": "cudnn", "cudnn_frontend_version": "cudnn_frontend", "gpu": "device"}
    return {names[field]: value for field, value in meta.items()}


def tactic(tokens, salt=0):
    return [8 << min(tokens.bit_length() // 3, 4), (tokens * 7 + salt * 13) % 800]


def cache(meta=None, buckets=BUCKETS, salt=0, width=3584, hidden=3584):
    """The file's text."""
    entries = {file_key(n, width, hidden): ["MoERunner", tactic(n, salt)] for n in buckets}
    return json.dumps({"_metadata": meta or metadata(), **dict(sorted(entries.items()))}, indent=2)


def name(layout, meta, cudnn=True):
    """As TokenSpeed names its packaged tables; of old without the cuDNN version."""
    parts = ["kimi-k3", layout, "device_name=" + meta["gpu"].replace(" ", "_"), "flashinfer=" + meta["flashinfer_version"]]
    return ",".join(parts + (["cudnn=" + meta["cudnn_version"]] if cudnn else [])) + ".json"
