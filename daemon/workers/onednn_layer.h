// SPDX-License-Identifier: Apache-2.0
// onednn_layer: the layer before. A model's matmul follows another one, which leaves the caches
// full of its own weights and packing buffers, the team awake and the clocks as vector code has
// them. This is that other one: the library's own pick for one token against weights as large as
// the last cache. The oneDNN worker runs it before each timed launch; it knows nothing of problems.
#pragma once
#include <dnnl.h>
#include <stdint.h>

struct onednn_layer;

// Memory it takes for a cache of that size.
uint64_t onednn_layer_bytes(uint64_t llc_bytes);

// Makes it and runs it once, at the thread count set now. The engine and the stream must outlive
// it.
dnnl_status_t onednn_layer_new(
    dnnl_engine_t engine, dnnl_stream_t stream, uint64_t llc_bytes, struct onednn_layer **out);
struct onednn_layer *onednn_layer_free(struct onednn_layer *l); // NULL

// One run.
dnnl_status_t onednn_layer_run(struct onednn_layer *l);
// What a run takes, as the first ones showed.
double onednn_layer_us(const struct onednn_layer *l);
