#include "src/run/kernels/aten/aten_attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <numbers>
#include <optional>
#include <stdexcept>
#include <string>

#include "paradyse/run/accountant.h"
#include "src/run/kernels/aten/aten_kernels.h"
#include "src/run/kernels/switches.h"

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

// Calls body(queries, keys that some of them see) run by run; both counted from the block's first.
template <typename Body>
void for_queries(const Attention& attention, Body body) {
  const std::int64_t height = attention_tile(attention.block).queries;
  const std::int64_t queries = attention.block.queries.size();
  const std::int64_t keys = attention.block.keys.size();
  for (std::int64_t i = 0; i < queries; i += height) {
    const Interval mine{i, std::min(i + height, queries)};
    const std::int64_t diagonal = attention.block.diagonal;
    const std::int64_t window = attention.block.window;
    const std::int64_t end =
        attention.masked ? std::clamp<std::int64_t>(mine.end + diagonal, 0, keys) : keys;
    const std::int64_t first = attention.masked && window > 0 ? i + diagonal + 1 - window : 0;
    body(mine, Interval{std::clamp<std::int64_t>(first, 0, end), end});
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
  const std::int64_t diagonal = attention.block.diagonal;
  const std::int64_t window = attention.block.window;
  const bool windowed = window > 0 && keys.begin <= queries.end - 1 + diagonal - window;
  if (!attention.masked || (keys.end - 1 <= queries.begin + diagonal && !windowed)) {
    return {};
  }
  const auto options = like.options().dtype(at::kLong);
  const at::Tensor i = at::arange(queries.begin, queries.end, options).unsqueeze(1);
  const at::Tensor j = at::arange(keys.begin, keys.end, options).unsqueeze(0);
  const at::Tensor later = j > i + diagonal;
  return windowed ? later.logical_or_(j <= i + (diagonal - window)) : later;
}

// Of a tile, in place.
void drop(const kernels::AttentionDropout& dropout, const at::Tensor& tile) {
  if (dropout.drops()) {
    drop_probabilities(dropout, tile, tile);
  }
}

Interval inside(Interval rows, Interval of) { return {of.begin + rows.begin, of.begin + rows.end}; }

}  // namespace

void attend(const Attention& attention, const AttentionTensors& tensors, bool merge) {
  const auto& [q, k, v, o, l, bias, mask] = tensors;
  const std::int64_t D = attention.head_dim;
  const at::ScalarType sum = sum_type(q.matrix.scalar_type());
  const AttentionTile size = attention_tile(attention.block);
  const Tile tile(q.matrix, size.queries * size.keys);
  const at::Tensor statistics = scratch(q.matrix, sum, {3, size.queries});
  for (std::int64_t head = 0; head < attention.heads; ++head) {
    SumsOf o_sums(part(o, attention.block.queries, head * D, D), sum, merge);
    for_queries(attention, [&](Interval queries, Interval seen) {
      const std::int64_t n = queries.size();
      const Interval rows = inside(queries, attention.block.queries);
      const at::Tensor maximum = statistics[0].narrow(0, 0, n);
      const at::Tensor total = statistics[1].narrow(0, 0, n);
      at::Tensor factor = statistics[2].narrow(0, 0, n);
      const at::Tensor l_rows = part(l, rows, head, 1).squeeze(1);
      at::Tensor o_rows = o_sums.rows(queries);
      if (seen.empty()) {
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
      for (std::int64_t j = seen.begin; j < seen.end; j += size.keys) {
        const Interval keys{j, std::min(j + size.keys, seen.end)};
        const Interval key_rows = inside(keys, attention.block.keys);
        at::Tensor p = tile.sums(n, keys.size());
        scaled_product(
            attention.scale * kLog2e,
            part(q, rows, head * D, D),
            part(k, key_rows, 0, D).t(),
            0,
            p);
        if (bias.matrix.defined()) {
          p.add_(pairs(bias, head, attention.block.keys.size(), queries, keys), kLog2e);
        }
        if (mask.matrix.defined()) {
          p.add_(part(mask, key_rows, 0, 1).t(), kLog2e);
        }
        if (attention.cap > 0) {
          p.div_(attention.cap * kLog2e).tanh_().mul_(attention.cap * kLog2e);
        }
        if (const at::Tensor later = hidden(attention, queries, keys, p); later.defined()) {
          p.masked_fill_(later, kNothing);
        }
        const at::Tensor highest = at::maximum(maximum, p.amax(1));
        // what has seen nothing yet stays at nothing: its differences are no numbers
        const at::Tensor zero = highest.masked_fill(highest == kNothing, 0);
        p.sub_(zero.unsqueeze(1)).exp2_();
        at::exp2_out(factor, maximum - zero);
        total.copy_(total * factor + p.sum(1));
        maximum.copy_(highest);
        o_rows.mul_(factor.unsqueeze(1));
        drop(attention.dropout.from(queries.begin, head, keys.begin), p);
        scaled_product(1, tile.rounded(n, keys.size()), part(v, key_rows, 0, D), 1, o_rows);
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
  const auto& [q, k, v, o, l, bias, mask] = tensors;
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
    for_queries(attention, [&](Interval queries, Interval seen) {
      const HostScope library_memory;
      const std::int64_t n = queries.size();
      const Interval rows = inside(queries, attention.block.queries);
      const at::Tensor log_sum = statistics[0].narrow(0, 0, n);
      const at::Tensor dot = statistics[1].narrow(0, 0, n);
      const at::Tensor q_rows = part(q, rows, head * D, D);
      const at::Tensor g_rows = part(grad_o, rows, head * D, D);
      log_sum.copy_(part(l, rows, head, 1).squeeze(1) * kLog2e);
      dot.copy_((part(o, rows, head * D, D).to(sum) * g_rows.to(sum)).sum(1));
      for (std::int64_t j = seen.begin; j < seen.end; j += size.keys) {
        const Interval keys{j, std::min(j + size.keys, seen.end)};
        const Interval key_rows = inside(keys, attention.block.keys);
        const at::Tensor k_rows = part(k, key_rows, 0, D);
        at::Tensor p = p_tile.sums(n, keys.size());
        at::Tensor d = d_tile.sums(n, keys.size());
        scaled_product(attention.scale * kLog2e, q_rows, k_rows.t(), 0, p);
        scaled_product(1, g_rows, part(v, key_rows, 0, D).t(), 0, d);
        if (bias.matrix.defined()) {
          p.add_(pairs(bias, head, attention.block.keys.size(), queries, keys), kLog2e);
        }
        if (mask.matrix.defined()) {
          p.add_(part(mask, key_rows, 0, 1).t(), kLog2e);
        }
        at::Tensor slope;  // of the cap
        if (attention.cap > 0) {
          p.div_(attention.cap * kLog2e).tanh_();
          slope = 1 - p.square();
          p.mul_(attention.cap * kLog2e);
        }
        p.sub_(log_sum.unsqueeze(1)).exp2_();
        const at::Tensor later = hidden(attention, queries, keys, p);
        if (later.defined()) {
          p.masked_fill_(later, 0);
        }
        const kernels::AttentionDropout dropout =
            attention.dropout.from(queries.begin, head, keys.begin);
        drop(dropout, d);
        d.sub_(dot.unsqueeze(1)).mul_(p);
        if (slope.defined()) {
          d.mul_(slope);
        }
        if (later.defined()) {
          d.masked_fill_(later, 0);
        }
        if (bias.matrix.defined()) {
          pairs(grad_bias, head, attention.block.keys.size(), queries, keys).add_(d);
        }
        const at::Tensor d_factor = d_tile.rounded(n, keys.size());
        drop(dropout, p);
        scaled_product(1, p_tile.rounded(n, keys.size()).t(), g_rows, 1, grad_v_sums.rows(keys));
        scaled_product(attention.scale, d_factor, k_rows, 1, grad_q_sums.rows(queries));
        scaled_product(attention.scale, d_factor.t(), q_rows, 1, grad_k_sums.rows(keys));
      }
    });
    grad_q_sums.store();
  }
  grad_k_sums.store();
  grad_v_sums.store();
}

// --- flash ---------------------------------------------------------------------------------------

namespace {

std::atomic<AttentionKernels>& chosen_kernels() {
  static std::atomic<AttentionKernels> kernels{AttentionKernels::from(
      std::getenv("PARADYSE_FLASH"), std::getenv("PARADYSE_CUDNN_ATTENTION"))};
  return kernels;
}

}  // namespace

AttentionKernels AttentionKernels::from(const char* flash, const char* cudnn) {
  const bool any = switched("PARADYSE_FLASH", flash, true);
  return {.flash = any, .cudnn = switched("PARADYSE_CUDNN_ATTENTION", cudnn, true) && any};
}
AttentionKernels attention_kernels() { return chosen_kernels().load(std::memory_order_relaxed); }
void use_attention_kernels(AttentionKernels kernels) { chosen_kernels().store(kernels); }

Interval Pack::queries() const { return {blocks.front().queries.begin, blocks.back().queries.end}; }
Interval Pack::keys() const { return {blocks.front().keys.begin, blocks.back().keys.end}; }

std::int64_t dense_rows(std::int64_t tokens) {
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(tokens)));
  const std::int64_t step = std::clamp<std::int64_t>(power / 4, 128, 1024);
  return (tokens + step - 1) / step * step;
}

namespace {

// What a flash call launches for its blocks, and what there is work for; of each head.
struct Launch {
  std::int64_t blocks = 0;
  std::int64_t longest = 0;  // in tiles
  std::int64_t used = 0;

  [[nodiscard]] Launch with(const AttentionBlock& block) const {
    constexpr std::int64_t kTile = 128;
    const std::int64_t tiles =
        (std::max(block.queries.size(), block.keys.size()) + kTile - 1) / kTile;
    return {blocks + 1, std::max(longest, tiles), used + tiles};
  }
  // 64 tiles of some 16 heads without work take about as long as another launch (E).
  [[nodiscard]] bool worth_it() const { return blocks * longest <= 2 * used + 64; }
};

}  // namespace

std::vector<Pack> packs(
    std::span<const AttentionBlock> blocks, bool masked, std::int64_t dense_from) {
  std::vector<Pack> all;
  std::int64_t begun = 0;  // queries before this one have had a block
  Launch launch;           // of the last pack
  for (const AttentionBlock& block : blocks) {
    const std::int64_t queries = block.queries.size();
    const std::int64_t keys = block.keys.size();
    const bool whole = block.window == 0 && (!masked || block.diagonal >= keys - 1);
    const std::int64_t behind = whole ? 0 : block.diagonal - (keys - queries);
    // The first query sees a key, and so does the last.
    const bool corner =
        block.diagonal >= 0 && (behind == 0 || (behind > 0 && behind < block.window));
    const bool square = corner && block.diagonal == 0 && block.window == 0;
    // torch's kernel takes blocks of one query another way
    const bool taken = (whole || corner) && queries > 1;
    const bool dense =
        taken && std::min(queries, keys) >= dense_from &&
        (whole ? dense_rows(queries) == queries && dense_rows(keys) == keys : square);
    const Pack alone{
        .blocks = {block},
        .plain = taken && !dense,
        .masked = !whole,
        .window = block.window,
        .behind = behind,
        .onto = block.queries.begin < begun,
        .dense = dense};
    begun = block.queries.end;
    const Launch more = launch.with(block);
    if (!all.empty() && all.back().plain && alone.plain && all.back().masked == alone.masked &&
        all.back().window == alone.window && all.back().behind == alone.behind &&
        all.back().onto == alone.onto && all.back().queries().end == block.queries.begin &&
        all.back().keys().end == block.keys.begin && more.worth_it()) {
      all.back().blocks.push_back(block);
      launch = more;
    } else {
      all.push_back(alone);
      launch = Launch().with(block);
    }
  }
  return all;
}

bool flash_takes(const at::Tensor& q, std::int64_t head_dim) {
  return (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf) && head_dim % 8 == 0 &&
         head_dim <= 256;
}

bool dense_takes(const at::Tensor& q, std::int64_t head_dim) {
  return flash_takes(q, head_dim) && head_dim <= 128 &&
         !at::globalContext().deterministicAlgorithms();
}

namespace {

// A pack as the kernel wants it.
struct Lengths {
  at::Tensor queries;  // cumulative, int32, on the device
  at::Tensor keys;
  std::int64_t most_queries = 0;
  std::int64_t most_keys = 0;
};

Lengths lengths_of(const Pack& pack, const FlashHeads& heads, c10::Device device) {
  std::vector<std::int64_t> queries = {0};
  std::vector<std::int64_t> keys = {0};
  Lengths lengths;
  for (const AttentionBlock& block : pack.blocks) {
    queries.push_back(block.queries.end - pack.queries().begin);
    keys.push_back(block.keys.end - pack.keys().begin);
    lengths.most_queries = std::max(lengths.most_queries, block.queries.size());
    lengths.most_keys = std::max(lengths.most_keys, block.keys.size());
  }
  const auto sent = [&](const std::vector<std::int64_t>& list) {
    return heads.on_device ? heads.on_device(list) : indices(list, device).to(at::kInt);
  };
  lengths.queries = sent(queries);
  lengths.keys = sent(keys);
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
// results, written out (plain_forward, plain_backward).  Calls body(rows of queries, rows of keys,
// head, key head, where hidden).
template <typename Body>
void for_flash_blocks(const Pack& pack, const FlashHeads& heads, Body body) {
  for (const AttentionBlock& block : pack.blocks) {
    const at::Tensor i = at::arange(block.queries.size()).unsqueeze(1);
    const at::Tensor j = at::arange(block.keys.size()).unsqueeze(0);
    const std::int64_t diagonal = block.keys.size() - block.queries.size() + pack.behind;
    at::Tensor unseen = pack.masked ? j > i + diagonal : j < 0;
    if (pack.window > 0) {
      unseen = unseen.logical_or(j <= i + (diagonal - pack.window));
    }
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
using FlashResults = std::pair<at::Tensor, at::Tensor>;

FlashResults plain_forward(const Pack& pack, const FlashHeads& heads, const FlashOperands& in) {
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

FlashOperands plain_backward(
    const Pack& pack,
    const FlashHeads& heads,
    const FlashOperands& in,
    const at::Tensor& o,
    const at::Tensor& l,
    const at::Tensor& grad_o) {
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

// Flash's window: keys before a query's own that it sees, and behind it; none: all, or, causal,
// none behind it.
bool is_causal(const Pack& pack) { return pack.masked && pack.behind == 0; }
std::optional<std::int64_t> keys_before(const Pack& pack) {
  return pack.window > 0 ? std::optional(pack.window - 1 - pack.behind) : std::nullopt;
}
std::optional<std::int64_t> keys_behind(const Pack& pack) {
  return pack.window > 0 || pack.behind > 0 ? std::optional(pack.behind) : std::nullopt;
}

FlashResults flash_forward(const Pack& pack, const FlashHeads& heads, const FlashOperands& in) {
  if (in.q.is_cpu()) {
    return plain_forward(pack, heads, in);
  }
  const Lengths n = lengths_of(pack, heads, in.q.device());
  const auto result = at::_flash_attention_forward(
      in.q,
      in.k,
      in.v,
      n.queries,
      n.keys,
      n.most_queries,
      n.most_keys,
      /*dropout_p=*/0,
      is_causal(pack),
      /*return_debug_mask=*/false,
      heads.scale,
      keys_before(pack),
      keys_behind(pack));
  return {std::get<0>(result), std::get<1>(result)};
}

// The gradients of the operands; o and l are those of all keys.
FlashOperands flash_backward(
    const Pack& pack,
    const FlashHeads& heads,
    const FlashOperands& in,
    const at::Tensor& o,
    const at::Tensor& l,
    const at::Tensor& grad_o) {
  if (in.q.is_cpu()) {
    return plain_backward(pack, heads, in, o, l, grad_o);
  }
  const Lengths n = lengths_of(pack, heads, in.q.device());
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
      is_causal(pack),
      random,
      random,
      heads.scale,
      keys_before(pack),
      keys_behind(pack));
  return {grad_q, grad_k, grad_v};
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

// --- cuDNN ---------------------------------------------------------------------------------------

// Rows past a dense block's end see its keys, and nobody reads what comes of it.  Nor do they give
// anything to the gradients of keys and values: their share of the scores is 0, by a log-sum-exp of
// so much, and so is their gradient of o.  What lies there has to be numbers, though.
constexpr double kFar = 1e30;

// `count` rows from rows.begin on: those that follow in the matrix, or, where it ends before, a
// copy with zeros behind.  Its strides are the matrix's, since cuDNN builds a graph for others,
// too.
at::Tensor rows_from(const at::Tensor& matrix, Interval rows, std::int64_t count) {
  if (rows.begin + count <= matrix.size(0)) {
    return matrix.narrow(0, rows.begin, count);
  }
  const at::Tensor copy =
      at::empty({count, std::max(matrix.stride(0), matrix.size(1))}, matrix.options())
          .narrow(1, 0, matrix.size(1));
  copy.narrow(0, 0, rows.size()).copy_(matrix.narrow(0, rows.begin, rows.size()));
  copy.narrow(0, rows.size(), count - rows.size()).zero_();
  return copy;
}

FlashOperands dense_operands(
    const Pack& pack, const FlashHeads& heads, const AttentionTensors& tensors) {
  const auto& [q, k, v, o, l, bias, mask] = tensors;
  const std::int64_t D = heads.head_dim;
  const Interval queries{0, dense_rows(pack.queries().size())};
  const Interval keys{0, dense_rows(pack.keys().size())};
  const at::Tensor k_rows = rows_from(k.matrix, pack.keys(), keys.size());
  const at::Tensor v_rows =
      v.matrix.is_same(k.matrix) ? k_rows : rows_from(v.matrix, pack.keys(), keys.size());
  const at::Tensor q_rows = q.matrix.is_same(k.matrix) && pack.queries() == pack.keys()
                                ? k_rows
                                : rows_from(q.matrix, pack.queries(), queries.size());
  return {
      heads_of({q_rows, q.first}, queries, heads.heads, D),
      heads_of({k_rows, k.first}, keys, heads.key_heads, D),
      heads_of({v_rows, v.first}, keys, heads.key_heads, D)};
}

// Contiguous, with zeros behind: the key of cuDNN's graph has q, k and v in it alone.
at::Tensor dense_copy(const at::Tensor& from, std::int64_t rows) {
  if (from.size(0) == rows) {
    return from.contiguous();
  }
  at::Tensor copy = at::empty({rows, from.size(1), from.size(2)}, from.options());
  copy.narrow(0, 0, from.size(0)).copy_(from);
  copy.narrow(0, from.size(0), rows - from.size(0)).zero_();
  return copy;
}

// From [rows, heads, D] to [1, heads, rows, D], and back.
at::Tensor batched(const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); }
at::Tensor unbatched(const at::Tensor& x) { return x.squeeze(0).transpose(0, 1); }

// What the stand-in computes with: all rows, as cuDNN does.
Pack whole_pack(const FlashOperands& in, bool masked) {
  return {.blocks = {{.queries = {0, in.q.size(0)}, .keys = {0, in.k.size(0)}}}, .masked = masked};
}
// And what it leaves where nobody may look.
void spoil(const at::Tensor& x, int dim, std::int64_t end) {
  x.narrow(dim, end, x.size(dim) - end).fill_(std::numeric_limits<double>::quiet_NaN());
}

FlashResults dense_forward(
    const Pack& pack, const FlashHeads& heads, const AttentionTensors& tensors) {
  const FlashOperands in = dense_operands(pack, heads, tensors);
  const std::int64_t tokens = pack.queries().size();
  const std::int64_t rows = in.q.size(0);
  at::Tensor o;
  at::Tensor l;
  if (!in.q.is_cpu()) {
    const auto result = at::_cudnn_attention_forward(
        batched(in.q),
        batched(in.k),
        batched(in.v),
        /*attn_bias=*/std::nullopt,
        /*cum_seq_q=*/std::nullopt,
        /*cum_seq_k=*/std::nullopt,
        rows,
        in.k.size(0),
        /*compute_log_sumexp=*/true,
        /*dropout_p=*/0,
        is_causal(pack),
        /*return_debug_mask=*/false,
        heads.scale);
    o = unbatched(std::get<0>(result));
    l = std::get<1>(result).reshape({heads.heads, rows});  // [1, heads, rows, 1]
  } else {
    std::tie(o, l) = plain_forward(whole_pack(in, pack.masked), heads, in);
    spoil(o, 0, tokens);
    spoil(l, 1, tokens);
  }
  return {o.narrow(0, 0, tokens), l.narrow(1, 0, tokens)};
}

FlashOperands dense_backward(
    const Pack& pack,
    const FlashHeads& heads,
    const AttentionTensors& tensors,
    const at::Tensor& o,
    const at::Tensor& l,
    const at::Tensor& grad_o) {
  const FlashOperands in = dense_operands(pack, heads, tensors);
  const std::int64_t tokens = pack.queries().size();
  const std::int64_t rows = in.q.size(0);
  const at::Tensor o_rows = dense_copy(o, rows);
  const at::Tensor g_rows = dense_copy(grad_o, rows);
  const at::Tensor l_rows = at::full({heads.heads, rows}, kFar, l.options());
  l_rows.narrow(1, 0, tokens).copy_(l);
  FlashOperands grad;
  if (!in.q.is_cpu()) {
    const at::Tensor none;
    const at::Tensor unused = at::empty({}, in.q.options().dtype(at::kLong));
    const auto [grad_q, grad_k, grad_v] = at::_cudnn_attention_backward(
        batched(g_rows),
        batched(in.q),
        batched(in.k),
        batched(in.v),
        batched(o_rows),
        l_rows.view({1, heads.heads, rows, 1}),
        /*philox_seed=*/unused,
        /*philox_offset=*/unused,
        /*attn_bias=*/none,
        /*cum_seq_q=*/none,
        /*cum_seq_k=*/none,
        rows,
        in.k.size(0),
        /*dropout_p=*/0,
        is_causal(pack),
        heads.scale);
    grad = {unbatched(grad_q), unbatched(grad_k), unbatched(grad_v)};
  } else {
    TORCH_CHECK(
        g_rows.narrow(0, tokens, rows - tokens).count_nonzero().item<std::int64_t>() == 0,
        "rows past a document's end have a gradient");
    grad = plain_backward(whole_pack(in, pack.masked), heads, in, o_rows, l_rows, g_rows);
    spoil(grad.q, 0, tokens);
    spoil(grad.k, 0, pack.keys().size());
    spoil(grad.v, 0, pack.keys().size());
  }
  return {
      grad.q.narrow(0, 0, tokens),
      grad.k.narrow(0, 0, pack.keys().size()),
      grad.v.narrow(0, 0, pack.keys().size())};
}

}  // namespace

void flash_attend(
    const Pack& pack, const FlashHeads& heads, const AttentionTensors& tensors, bool merge) {
  const auto& [q, k, v, o, l, bias, mask] = tensors;
  const HostScope library_memory;
  const at::Tensor o_rows = heads_of(o, pack.queries(), heads.heads, heads.head_dim);
  const at::Tensor l_rows = part(l, pack.queries(), 0, heads.heads);
  const auto [new_o, l_heads] = pack.dense
                                    ? dense_forward(pack, heads, tensors)
                                    : flash_forward(pack, heads, operands_of(pack, heads, q, k, v));
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
    const AttentionGradients& gradients,
    bool fresh) {
  const auto& [q, k, v, o, l, bias, mask] = tensors;
  const auto& [grad_o, grad_q, grad_k, grad_v, grad_bias] = gradients;
  const HostScope library_memory;
  const at::Tensor o_rows = heads_of(o, pack.queries(), heads.heads, heads.head_dim);
  const at::Tensor g_rows = heads_of(grad_o, pack.queries(), heads.heads, heads.head_dim);
  const at::Tensor l_rows = part(l, pack.queries(), 0, heads.heads).t().contiguous();
  const FlashOperands grad =
      pack.dense
          ? dense_backward(pack, heads, tensors, o_rows, l_rows, g_rows)
          : flash_backward(pack, heads, operands_of(pack, heads, q, k, v), o_rows, l_rows, g_rows);
  const FlashOperands to = operands_of(pack, heads, grad_q, grad_k, grad_v);
  const auto give = [&](at::Tensor into, const at::Tensor& from) {
    fresh ? into.copy_(from) : into.add_(from);
  };
  give(to.q, grad.q);
  give(to.k, grad.k);
  give(to.v, grad.v);
}

namespace {

using ops::AttentionMatrices;
using ops::BlockAttention;
using ops::HeadRun;

// Runs of heads that one flash call takes: all, where each key head has as many queries.
struct FlashRuns {
  HeadRun first;
  FlashHeads heads;
};
std::vector<FlashRuns> flash_runs(const BlockAttention& attention) {
  std::vector<FlashRuns> all;
  for (const HeadRun& run : attention.runs) {
    const std::int64_t size = run.queries.size();
    if (!all.empty() && size * all.back().heads.key_heads == all.back().heads.heads) {
      all.back().heads.heads += size;
      ++all.back().heads.key_heads;
    } else {
      all.push_back(
          {.first = run,
           .heads = {
               .heads = size,
               .key_heads = 1,
               .head_dim = attention.head_dim,
               .scale = attention.scale,
               .on_device = attention.on_device}});
    }
  }
  return all;
}

// In which torch's kernels, or tiles, take the blocks.
std::vector<Pack> packs_of(const BlockAttention& attention, const AttentionMatrices& in) {
  const AttentionKernels allowed = attention_kernels();
  if (!allowed.flash || in.bias.defined() || in.mask.defined() || attention.cap > 0 ||
      attention.dropout.probability > 0 || !flash_takes(in.q, attention.head_dim)) {
    std::vector<Pack> all;
    std::int64_t begun = 0;  // queries before this one have had a block
    for (const AttentionBlock& block : attention.blocks) {
      all.push_back({.blocks = {block}, .plain = false, .onto = block.queries.begin < begun});
      begun = block.queries.end;
    }
    return all;
  }
  const bool dense = allowed.cudnn && dense_takes(in.q, attention.head_dim);
  return packs(attention.blocks, attention.masked, dense ? attention.dense_from : kNeverDense);
}

bool is_tiles(const Pack& pack) { return !pack.plain && !pack.dense; }

// Whether each row is in just one block, in their order.
bool in_a_row(
    const std::vector<AttentionBlock>& blocks, Interval AttentionBlock::* side, std::int64_t rows) {
  std::int64_t end = 0;
  for (const AttentionBlock& block : blocks) {
    if ((block.*side).begin != end) {
      return false;
    }
    end = (block.*side).end;
  }
  return end == rows;
}

}  // namespace

void attend_blocks(const BlockAttention& attention, const AttentionMatrices& in, bool merge) {
  const std::vector<FlashRuns> together = flash_runs(attention);
  for (const Pack& pack : packs_of(attention, in)) {
    const bool onto = merge || pack.onto;
    if (is_tiles(pack)) {
      for (const HeadRun& run : attention.runs) {
        attend(attention.of(pack.blocks.front(), run), tensors_of(attention, run, in), onto);
      }
      continue;
    }
    for (const FlashRuns& run : together) {
      flash_attend(pack, run.heads, tensors_of(attention, run.first, in), onto);
    }
  }
}

void attend_blocks_adjoint(
    const BlockAttention& attention,
    const AttentionMatrices& in,
    const AttentionMatrices& gradients,
    bool fresh) {
  const std::vector<FlashRuns> together = flash_runs(attention);
  const std::vector<Pack> packs = packs_of(attention, in);
  // Written by the kernels' results alone, every row and column once.
  const bool writes = fresh && std::ranges::none_of(packs, is_tiles) &&
                      in_a_row(attention.blocks, &AttentionBlock::queries, gradients.q.size(0)) &&
                      in_a_row(attention.blocks, &AttentionBlock::keys, gradients.kv.size(0)) &&
                      std::ssize(attention.runs) == attention.key_heads;
  if (fresh && !writes) {
    at::Tensor(gradients.q).zero_();
    if (!gradients.kv.is_same(gradients.q)) {
      at::Tensor(gradients.kv).zero_();
    }
  }
  for (const Pack& pack : packs) {
    if (is_tiles(pack)) {
      for (const HeadRun& run : attention.runs) {
        attend_adjoint(
            attention.of(pack.blocks.front(), run),
            tensors_of(attention, run, in),
            gradients_of(attention, run, gradients));
      }
      continue;
    }
    for (const FlashRuns& run : together) {
      flash_attend_adjoint(
          pack,
          run.heads,
          tensors_of(attention, run.first, in),
          gradients_of(attention, run.first, gradients),
          writes);
    }
  }
}

}  // namespace paradyse::aten
