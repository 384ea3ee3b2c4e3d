#include "src/run/kernels/attention.h"

namespace paradyse::ops {
namespace {

Columns queries(const BlockAttention& attention, const HeadRun& run, const at::Tensor& matrix) {
  return {matrix, run.queries.begin * attention.head_dim};
}

// Of keys, or of the values behind them.
Columns keys(
    const BlockAttention& attention,
    const HeadRun& run,
    const AttentionMatrices& in,
    std::int64_t before) {
  const std::int64_t first = in.q.is_same(in.kv) ? attention.query_heads : 0;
  return {in.kv, (first + before + run.key) * attention.head_dim};
}

}  // namespace

AttentionTensors tensors_of(
    const BlockAttention& attention, const HeadRun& run, const AttentionMatrices& in) {
  return {
      .q = queries(attention, run, in.q),
      .k = keys(attention, run, in, 0),
      .v = keys(attention, run, in, attention.key_heads),
      .o = queries(attention, run, in.o),
      .l = {in.l, run.queries.begin},
      .bias = {in.bias, run.queries.begin},
      .mask = {in.mask.defined() ? in.mask.unsqueeze(1) : in.mask}};
}

AttentionGradients gradients_of(
    const BlockAttention& attention, const HeadRun& run, const AttentionMatrices& in) {
  return {
      .o = queries(attention, run, in.o),
      .q = queries(attention, run, in.q),
      .k = keys(attention, run, in, 0),
      .v = keys(attention, run, in, attention.key_heads),
      .bias = {in.bias, run.queries.begin}};
}

}  // namespace paradyse::ops
