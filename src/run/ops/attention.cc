// Softmax attention in each document by torch's flash kernel.
//
// Columns of qkv: the rank's query heads, key heads, value heads, D each.
#include <cmath>

#include "src/run/ops/ops.h"

namespace paradyse::ops {
namespace {

// Heads [first, first + count) of the `tokens` rows from `token`, as the kernel wants them:
// [1, heads, tokens, D] without a copy.
at::Tensor heads_view(
    const at::Tensor& matrix,
    std::int64_t token,
    std::int64_t tokens,
    std::int64_t first,
    std::int64_t count,
    std::int64_t D) {
  return matrix.narrow(0, token, tokens)
      .narrow(1, first * D, count * D)
      .unflatten(1, {count, D})
      .transpose(0, 1)
      .unsqueeze(0);
}

struct Operands {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
};

Operands operands(
    const at::Tensor& qkv, const Heads& mine, const AttentionCall& call, std::int64_t D) {
  const std::int64_t keys = mine.query.size();
  const std::int64_t values = keys + mine.key.size();
  const auto view = [&](std::int64_t first, Interval heads) {
    return heads_view(qkv, call.first_token, call.tokens, first + heads.begin, heads.size(), D);
  };
  return {view(0, call.query), view(keys, call.key), view(values, call.key)};
}

const Heads& my_heads(const Frame& frame, const Op& op) {
  return op.heads[static_cast<std::size_t>(frame.rank->seat.group_rank)];
}

double scale(std::int64_t D) { return 1.0 / std::sqrt(static_cast<double>(D)); }

}  // namespace

void attention(Frame& frame, const Op& op) {
  const at::Tensor qkv = frame.value(op.in[0]);
  const std::int64_t D = frame.program().head_dim;
  const Heads& mine = my_heads(frame, op);
  const bool causal = frame.program().tokens.causal;
  const auto calls = attention_calls(frame.program(), op, frame.rank->seat.group_rank);
  if (calls.size() == 1) {  // the kernel's results, [T, h, D] in memory, are the op's
    const auto [q, k, v] = operands(qkv, mine, calls[0], D);
    auto [o, l] =
        at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, {}, scale(D));
    frame.values[static_cast<std::size_t>(op.out[0])] =
        o.squeeze(0).transpose(0, 1).reshape({calls[0].tokens, mine.query.size() * D});
    frame.values[static_cast<std::size_t>(op.out[1])] = l.squeeze(0).t();
    return;
  }
  const at::Tensor o_TN = frame.make(op.out[0]);
  const at::Tensor l_TN = frame.make(op.out[1]);
  for (const AttentionCall& call : calls) {
    const auto [q, k, v] = operands(qkv, mine, call, D);
    const auto [o, l] =
        at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, {}, scale(D));
    heads_view(o_TN, call.first_token, call.tokens, call.query.begin, call.query.size(), D)
        .copy_(o);
    heads_view(l_TN, call.first_token, call.tokens, call.query.begin, call.query.size(), 1)
        .squeeze(3)
        .copy_(l);
  }
}

void attention_adjoint(Frame& frame, const Op& op) {
  const at::Tensor qkv = frame.value(op.in[0]);
  const at::Tensor o_TN = frame.value(op.out[0]);
  const at::Tensor l_TN = frame.value(op.out[1]);
  const at::Tensor grad_o_TN = frame.gradient(op.out[0]);
  const at::Tensor grad_qkv = frame.only_gradient_target(op.in[0]);
  const std::int64_t D = frame.program().head_dim;
  const Heads& mine = my_heads(frame, op);
  const bool causal = frame.program().tokens.causal;
  for (const AttentionCall& call :
       attention_calls(frame.program(), op, frame.rank->seat.group_rank)) {
    const auto [q, k, v] = operands(qkv, mine, call, D);
    const auto mine_of = [&](const at::Tensor& matrix, std::int64_t width) {
      return heads_view(
          matrix, call.first_token, call.tokens, call.query.begin, call.query.size(), width);
    };
    const auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        mine_of(grad_o_TN, D),
        q,
        k,
        v,
        mine_of(o_TN, D),
        mine_of(l_TN, 1).squeeze(3),
        0.0,
        causal,
        {},
        scale(D));
    const auto [to_q, to_k, to_v] = operands(grad_qkv, mine, call, D);
    to_q.copy_(grad_q);
    to_k.copy_(grad_k);
    to_v.copy_(grad_v);
  }
}

}  // namespace paradyse::ops
