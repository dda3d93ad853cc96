# SPDX-License-Identifier: Apache-2.0
from .gemm_base import bmm_bf16 as bmm_bf16
from .gemm_base import bmm_fp8 as bmm_fp8
from .gemm_base import mm_bf16 as mm_bf16
