#include "src/run/kernels/aten/aten_attention.h"

#include <algorithm>
#include <limits>
#include <numbers>

#include "paradyse/run/accountant.h"
#include "src/run/kernels/aten/aten_kernels.h"
#include "src/run/kernels/cpu/products.h"

namespace paradyse::aten {
namespace {

using ops::Attention;
using ops::AttentionGradients;
using ops::AttentionTensors;
using ops::Columns;

constexpr double kLog2e = std::numbers::log2e;
constexpr double kLn2 = std::numbers::ln2;
constexpr double kNothing = -std::numeric_limits<double>::infinity();  // log of a sum over no keys

// Rows `tokens`, `width` columns from `column` of these on.
at::Tensor part(const Columns& columns, Interval tokens, std::int64_t column, std::int64_t width) {
  return columns.matrix.narrow(0, tokens.begin, tokens.size())
      .narrow(1, columns.first + column, width);
}

at::Tensor scratch(const at::Tensor& like, at::ScalarType type, std::vector<std::int64_t> sizes) {
  return at::empty(sizes, like.options().dtype(type));
}

// A result in the type of sums: in place, or in scratch beside a narrow one.
class SumsOf {
 public:
  SumsOf(const at::Tensor& result, at::ScalarType sums, bool load)
      : result_(result),
        sums_(result.scalar_type() == sums ? result : scratch(result, sums, result.sizes().vec())) {
    if (load && !sums_.is_same(result_)) {
      sums_.copy_(result_);
    }
  }
  [[nodiscard]] at::Tensor rows(Interval rows) const {
    return sums_.narrow(0, rows.begin, rows.size());
  }
  void store() {
    if (!sums_.is_same(result_)) {
      result_.copy_(sums_);
    }
  }

 private:
  at::Tensor result_;
  at::Tensor sums_;
};

// A tile of scores, and of it rounded for the next product: the memory that
// src/plan/ops/attention.cc says.
class Tile {
 public:
  Tile(const at::Tensor& like, std::int64_t elements)
      : sums_(scratch(like, sum_type(like.scalar_type()), {elements})),
        narrow_(
            like.scalar_type() == sums_.scalar_type()
                ? sums_
                : scratch(like, like.scalar_type(), {elements})) {}
  [[nodiscard]] at::Tensor sums(std::int64_t rows, std::int64_t cols) const {
    return sums_.narrow(0, 0, rows * cols).view({rows, cols});
  }
  [[nodiscard]] at::Tensor rounded(std::int64_t rows, std::int64_t cols) const {
    const at::Tensor narrow = narrow_.narrow(0, 0, rows * cols).view({rows, cols});
    if (!narrow_.is_same(sums_)) {
      narrow.copy_(sums(rows, cols));
    }
    return narrow;
  }

 private:
  at::Tensor sums_;
  at::Tensor narrow_;
};

// Calls body(queries, keys seen by some of them) run by run; both counted from the block's first.
template <typename Body>
void for_queries(const Attention& attention, Body body) {
  const std::int64_t height = attention_tile(attention.block).queries;
  const std::int64_t queries = attention.block.queries.size();
  const std::int64_t keys = attention.block.keys.size();
  for (std::int64_t i = 0; i < queries; i += height) {
    const Interval mine{i, std::min(i + height, queries)};
    body(
        mine,
        attention.causal ? std::clamp<std::int64_t>(mine.end + attention.block.diagonal, 0, keys)
                         : keys);
  }
}

// Of a head's bias, or its gradient, the elements of these queries and keys of the block.
at::Tensor pairs(
    const Columns& bias,
    std::int64_t head,
    std::int64_t all_keys,
    Interval queries,
    Interval keys) {
  return bias.matrix.select(1, bias.first + head)
      .unflatten(0, {-1, all_keys})
      .narrow(0, queries.begin, queries.size())
      .narrow(1, keys.begin, keys.size());
}

// Where a query of the tile does not see a key; undefined where all see all.
at::Tensor hidden(
    const Attention& attention, Interval queries, Interval keys, const at::Tensor& like) {
  if (!attention.causal || keys.end - 1 <= queries.begin + attention.block.diagonal) {
    return {};
  }
  const auto options = like.options().dtype(at::kLong);
  const at::Tensor i = at::arange(queries.begin, queries.end, options).unsqueeze(1);
  const at::Tensor j = at::arange(keys.begin, keys.end, options).unsqueeze(0);
  return j > i + attention.block.diagonal;
}

Interval inside(Interval rows, Interval of) { return {of.begin + rows.begin, of.begin + rows.end}; }

}  // namespace

void attend(const Attention& attention, const AttentionTensors& tensors, bool merge) {
  const auto& [q, k, v, o, l, bias] = tensors;
  const std::int64_t D = attention.head_dim;
  const at::ScalarType sum = sum_type(q.matrix.scalar_type());
  const AttentionTile size = attention_tile(attention.block);
  const Tile tile(q.matrix, size.queries * size.keys);
  const at::Tensor statistics = scratch(q.matrix, sum, {3, size.queries});
  for (std::int64_t head = 0; head < attention.heads; ++head) {
    SumsOf o_sums(part(o, attention.block.queries, head * D, D), sum, merge);
    for_queries(attention, [&](Interval queries, std::int64_t seen) {
      const std::int64_t n = queries.size();
      const Interval rows = inside(queries, attention.block.queries);
      const at::Tensor maximum = statistics[0].narrow(0, 0, n);
      const at::Tensor total = statistics[1].narrow(0, 0, n);
      at::Tensor factor = statistics[2].narrow(0, 0, n);
      const at::Tensor l_rows = part(l, rows, head, 1).squeeze(1);
      at::Tensor o_rows = o_sums.rows(queries);
      if (seen == 0) {
        if (!merge) {
          o_rows.zero_();
          l_rows.fill_(kNothing);
        }
        return;
      }
      const HostScope library_memory;
      if (merge) {
        maximum.copy_(l_rows * kLog2e);
        total.copy_(maximum != kNothing);
      } else {
        maximum.fill_(kNothing);
        total.zero_();
        o_rows.zero_();
      }
      for (std::int64_t j = 0; j < seen; j += size.keys) {
        const Interval keys{j, std::min(j + size.keys, seen)};
        const Interval key_rows = inside(keys, attention.block.keys);
        at::Tensor p = tile.sums(n, keys.size());
        ops::gemm(
            attention.scale * kLog2e,
            part(q, rows, head * D, D),
            part(k, key_rows, 0, D).t(),
            0,
            p);
        if (bias.matrix.defined()) {
          p.add_(pairs(bias, head, attention.block.keys.size(), queries, keys), kLog2e);
        }
        if (const at::Tensor mask = hidden(attention, queries, keys, p); mask.defined()) {
          p.masked_fill_(mask, kNothing);
        }
        const at::Tensor highest = at::maximum(maximum, p.amax(1));
        // what has seen nothing yet stays at nothing: its differences are no numbers
        const at::Tensor zero = highest.masked_fill(highest == kNothing, 0);
        p.sub_(zero.unsqueeze(1)).exp2_();
        at::exp2_out(factor, maximum - zero);
        total.copy_(total * factor + p.sum(1));
        maximum.copy_(highest);
        o_rows.mul_(factor.unsqueeze(1));
        ops::gemm(1, tile.rounded(n, keys.size()), part(v, key_rows, 0, D), 1, o_rows);
      }
      l_rows.copy_((maximum + total.log2()) * kLn2);
      l_rows.masked_fill_(total == 0, kNothing);
      factor.copy_(total.reciprocal().masked_fill_(total == 0, 0));
      o_rows.mul_(factor.unsqueeze(1));
    });
    o_sums.store();
  }
}

void attend_adjoint(
    const Attention& attention,
    const AttentionTensors& tensors,
    const AttentionGradients& gradients) {
  const auto& [q, k, v, o, l, bias] = tensors;
  const auto& [grad_o, grad_q, grad_k, grad_v, grad_bias] = gradients;
  const std::int64_t D = attention.head_dim;
  const at::ScalarType sum = sum_type(q.matrix.scalar_type());
  const AttentionTile size = attention_tile(attention.block);
  const Tile p_tile(q.matrix, size.queries * size.keys);
  const Tile d_tile(q.matrix, size.queries * size.keys);
  const at::Tensor statistics = scratch(q.matrix, sum, {2, size.queries});
  SumsOf grad_k_sums(part(grad_k, attention.block.keys, 0, D), sum, true);
  SumsOf grad_v_sums(part(grad_v, attention.block.keys, 0, D), sum, true);
  for (std::int64_t head = 0; head < attention.heads; ++head) {
    SumsOf grad_q_sums(part(grad_q, attention.block.queries, head * D, D), sum, true);
    for_queries(attention, [&](Interval queries, std::int64_t seen) {
      const HostScope library_memory;
      const std::int64_t n = queries.size();
      const Interval rows = inside(queries, attention.block.queries);
      const at::Tensor log_sum = statistics[0].narrow(0, 0, n);
      const at::Tensor dot = statistics[1].narrow(0, 0, n);
      const at::Tensor q_rows = part(q, rows, head * D, D);
      const at::Tensor g_rows = part(grad_o, rows, head * D, D);
      log_sum.copy_(part(l, rows, head, 1).squeeze(1) * kLog2e);
      dot.copy_((part(o, rows, head * D, D).to(sum) * g_rows.to(sum)).sum(1));
      for (std::int64_t j = 0; j < seen; j += size.keys) {
        const Interval keys{j, std::min(j + size.keys, seen)};
        const Interval key_rows = inside(keys, attention.block.keys);
        const at::Tensor k_rows = part(k, key_rows, 0, D);
        at::Tensor p = p_tile.sums(n, keys.size());
        at::Tensor d = d_tile.sums(n, keys.size());
        ops::gemm(attention.scale * kLog2e, q_rows, k_rows.t(), 0, p);
        ops::gemm(1, g_rows, part(v, key_rows, 0, D).t(), 0, d);
        if (bias.matrix.defined()) {
          p.add_(pairs(bias, head, attention.block.keys.size(), queries, keys), kLog2e);
        }
        p.sub_(log_sum.unsqueeze(1)).exp2_();
        const at::Tensor mask = hidden(attention, queries, keys, p);
        if (mask.defined()) {
          p.masked_fill_(mask, 0);
        }
        d.sub_(dot.unsqueeze(1)).mul_(p);
        if (mask.defined()) {
          d.masked_fill_(mask, 0);
        }
        if (bias.matrix.defined()) {
          pairs(grad_bias, head, attention.block.keys.size(), queries, keys).add_(d);
        }
        const at::Tensor d_factor = d_tile.rounded(n, keys.size());
        ops::gemm(1, p_tile.rounded(n, keys.size()).t(), g_rows, 1, grad_v_sums.rows(keys));
        ops::gemm(attention.scale, d_factor, k_rows, 1, grad_q_sums.rows(queries));
        ops::gemm(attention.scale, d_factor.t(), q_rows, 1, grad_k_sums.rows(keys));
      }
    });
    grad_q_sums.store();
  }
  grad_k_sums.store();
  grad_v_sums.store();
}

// --- flash ---------------------------------------------------------------------------------------

Interval Pack::queries() const { return {blocks.front().queries.begin, blocks.back().queries.end}; }
Interval Pack::keys() const { return {blocks.front().keys.begin, blocks.back().keys.end}; }

std::vector<Pack> packs(std::span<const AttentionBlock> blocks, bool causal) {
  std::vector<Pack> all;
  std::int64_t begun = 0;  // queries before this one have had a block
  for (const AttentionBlock& block : blocks) {
    const bool whole = !causal || block.diagonal >= block.keys.size() - 1;
    const bool corner =
        block.diagonal >= 0 && block.diagonal == block.keys.size() - block.queries.size();
    const Pack alone{
        .blocks = {block},
        // torch's kernel takes blocks of one query another way
        .plain = (whole || corner) && block.queries.size() > 1,
        .causal = !whole,
        .onto = block.queries.begin < begun};
    begun = block.queries.end;
    if (!all.empty() && all.back().plain && alone.plain && all.back().causal == alone.causal &&
        all.back().onto == alone.onto && all.back().queries().end == block.queries.begin &&
        all.back().keys().end == block.keys.begin) {
      all.back().blocks.push_back(block);
    } else {
      all.push_back(alone);
    }
  }
  return all;
}

bool flash_takes(const at::Tensor& q, std::int64_t head_dim) {
  return (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf) && head_dim % 8 == 0 &&
         head_dim <= 256;
}

namespace {

// A pack as the kernel wants it.
struct Lengths {
  at::Tensor queries;  // cumulative, int32, on the device
  at::Tensor keys;
  std::int64_t most_queries = 0;
  std::int64_t most_keys = 0;
};

Lengths lengths_of(const Pack& pack, c10::Device device) {
  std::vector<std::int64_t> queries = {0};
  std::vector<std::int64_t> keys = {0};
  Lengths lengths;
  for (const AttentionBlock& block : pack.blocks) {
    queries.push_back(block.queries.end - pack.queries().begin);
    keys.push_back(block.keys.end - pack.keys().begin);
    lengths.most_queries = std::max(lengths.most_queries, block.queries.size());
    lengths.most_keys = std::max(lengths.most_keys, block.keys.size());
  }
  lengths.queries = indices(queries, device).to(at::kInt);
  lengths.keys = indices(keys, device).to(at::kInt);
  return lengths;
}

// A row a token, its heads apart.
at::Tensor heads_of(const Columns& columns, Interval tokens, std::int64_t heads, std::int64_t D) {
  return part(columns, tokens, 0, heads * D).unflatten(1, {heads, D});
}

struct FlashOperands {
  at::Tensor q;  // [queries, heads, D]
  at::Tensor k;  // [keys, key heads, D]
  at::Tensor v;
};

// Stands in for torch's kernels on CPU tensors, which they do not take: the same arguments and
// results, written out.  Calls body(rows of queries, rows of keys, head, key head, where hidden).
template <typename Body>
void for_flash_blocks(const Pack& pack, const FlashHeads& heads, Body body) {
  for (const AttentionBlock& block : pack.blocks) {
    const at::Tensor i = at::arange(block.queries.size()).unsqueeze(1);
    const at::Tensor j = at::arange(block.keys.size()).unsqueeze(0);
    const at::Tensor unseen =
        pack.causal ? j > i + (block.keys.size() - block.queries.size()) : j < 0;
    const at::indexing::Slice q(
        block.queries.begin - pack.queries().begin, block.queries.end - pack.queries().begin);
    const at::indexing::Slice k(
        block.keys.begin - pack.keys().begin, block.keys.end - pack.keys().begin);
    for (std::int64_t h = 0; h < heads.heads; ++h) {
      body(q, k, h, h / (heads.heads / heads.key_heads), unseen);
    }
  }
}

// [queries, heads, D] and the log-sum-exp [heads, queries].
std::pair<at::Tensor, at::Tensor> flash_forward(
    const Pack& pack, const FlashHeads& heads, const FlashOperands& in) {
  if (in.q.is_cuda()) {
    const Lengths n = lengths_of(pack, in.q.device());
    const auto result = at::_flash_attention_forward(
        in.q,
        in.k,
        in.v,
        n.queries,
        n.keys,
        n.most_queries,
        n.most_keys,
        /*dropout_p=*/0,
        pack.causal,
        /*return_debug_mask=*/false,
        heads.scale);
    return {std::get<0>(result), std::get<1>(result)};
  }
  at::Tensor o = at::empty(in.q.sizes(), in.q.options());
  at::Tensor l = at::empty({heads.heads, in.q.size(0)}, at::kFloat);
  for_flash_blocks(
      pack, heads, [&](const auto& q, const auto& k, auto h, auto key, const at::Tensor& unseen) {
        at::Tensor s =
            in.q.index({q, h}).to(at::kFloat).mm(in.k.index({k, key}).to(at::kFloat).t());
        s = (s * heads.scale).masked_fill(unseen, kNothing);
        const at::Tensor sum = at::logsumexp(s, {1});
        const at::Tensor p = (s - sum.unsqueeze(1)).exp();
        o.index_put_({q, h}, p.mm(in.v.index({k, key}).to(at::kFloat)).to(o.scalar_type()));
        l.index_put_({h, q}, sum);
      });
  return {o, l};
}

// The gradients of the operands; o and l are those of all keys.
FlashOperands flash_backward(
    const Pack& pack,
    const FlashHeads& heads,
    const FlashOperands& in,
    const at::Tensor& o,
    const at::Tensor& l,
    const at::Tensor& grad_o) {
  if (in.q.is_cuda()) {
    const Lengths n = lengths_of(pack, in.q.device());
    const at::Tensor random = at::zeros({2}, in.q.options().dtype(at::kLong)).to(at::kUInt64);
    const auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
        grad_o,
        in.q,
        in.k,
        in.v,
        o,
        l,
        n.queries,
        n.keys,
        n.most_queries,
        n.most_keys,
        /*dropout_p=*/0,
        pack.causal,
        random,
        random,
        heads.scale);
    return {grad_q, grad_k, grad_v};
  }
  const auto zeros = [](const at::Tensor& x) {
    return at::zeros(x.sizes(), x.options().dtype(at::kFloat));
  };
  const FlashOperands grad{zeros(in.q), zeros(in.k), zeros(in.v)};
  for_flash_blocks(
      pack, heads, [&](const auto& q, const auto& k, auto h, auto key, const at::Tensor& unseen) {
        const auto wide = [](const at::Tensor& x) { return x.to(at::kFloat); };
        const at::Tensor q_D = wide(in.q.index({q, h}));
        const at::Tensor k_D = wide(in.k.index({k, key}));
        const at::Tensor g_D = wide(grad_o.index({q, h}));
        const at::Tensor s = q_D.mm(k_D.t()) * heads.scale;
        const at::Tensor p = (s - l.index({h, q}).unsqueeze(1)).exp().masked_fill(unseen, 0);
        const at::Tensor dot = (g_D * wide(o.index({q, h}))).sum(1, true);
        const at::Tensor d = p * (g_D.mm(wide(in.v.index({k, key})).t()) - dot) * heads.scale;
        grad.q.index({q, h}).add_(d.mm(k_D));
        grad.k.index({k, key}).add_(d.t().mm(q_D));
        grad.v.index({k, key}).add_(p.t().mm(g_D));
      });
  const at::ScalarType type = in.q.scalar_type();
  return {grad.q.to(type), grad.k.to(type), grad.v.to(type)};
}

FlashOperands operands_of(
    const Pack& pack,
    const FlashHeads& heads,
    const Columns& q,
    const Columns& k,
    const Columns& v) {
  const std::int64_t D = heads.head_dim;
  return {
      heads_of(q, pack.queries(), heads.heads, D),
      heads_of(k, pack.keys(), heads.key_heads, D),
      heads_of(v, pack.keys(), heads.key_heads, D)};
}

}  // namespace

void flash_attend(
    const Pack& pack, const FlashHeads& heads, const AttentionTensors& tensors, bool merge) {
  const auto& [q, k, v, o, l, bias] = tensors;
  const HostScope library_memory;
  const at::Tensor o_rows = heads_of(o, pack.queries(), heads.heads, heads.head_dim);
  const at::Tensor l_rows = part(l, pack.queries(), 0, heads.heads);
  const auto [new_o, l_heads] = flash_forward(pack, heads, operands_of(pack, heads, q, k, v));
  const at::Tensor new_l = l_heads.t();
  if (!merge) {
    o_rows.copy_(new_o);
    l_rows.copy_(new_l);
    return;
  }
  // Some key is seen now, so that the sum is a number whatever was seen before.
  const at::Tensor both = at::logaddexp(l_rows, new_l);
  const at::Tensor before = (l_rows - both).exp().unsqueeze(2);
  o_rows.copy_(o_rows * before + new_o * (new_l - both).exp().unsqueeze(2));
  l_rows.copy_(both);
}

void flash_attend_adjoint(
    const Pack& pack,
    const FlashHeads& heads,
    const AttentionTensors& tensors,
    const AttentionGradients& gradients) {
  const auto& [q, k, v, o, l, bias] = tensors;
  const auto& [grad_o, grad_q, grad_k, grad_v, grad_bias] = gradients;
  const HostScope library_memory;
  const FlashOperands grad = flash_backward(
      pack,
      heads,
      operands_of(pack, heads, q, k, v),
      heads_of(o, pack.queries(), heads.heads, heads.head_dim),
      part(l, pack.queries(), 0, heads.heads).t().contiguous(),
      heads_of(grad_o, pack.queries(), heads.heads, heads.head_dim));
  const FlashOperands to = operands_of(pack, heads, grad_q, grad_k, grad_v);
  at::Tensor(to.q).add_(grad.q);
  at::Tensor(to.k).add_(grad.k);
  at::Tensor(to.v).add_(grad.v);
}

}  // namespace paradyse::aten
