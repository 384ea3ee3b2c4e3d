// Triangle multiplication (Jumper et al. 2021, algorithms 11 and 12), o_ij = sum_k a_ik b_jk or
// (incoming) o_ij = sum_k a_ki b_kj, of a and b made from z row by row; weights gathered (ZeRO-3).
//
//   gather    the operand whose other side is cut is gathered: O(r^2) elements
//   scatter   where k is cut, every rank makes terms of all sums, which are scattered
//   channels  both operands are switched to a cut of their channels, and the product back: every
//             channel is a product of its own.  O(r^2 / p), either orientation
#include <algorithm>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

enum class Exchanged { gather, scatter, channels };

// Stored channel by channel.
Layout by_channel(const Layout& layout) {
  Layout result = layout;
  std::rotate(result.dims.begin(), result.dims.end() - 1, result.dims.end());
  return result;
}

// Of z stored row i by row i.  A product for each channel needs its rows and columns as o has them,
// and all that is summed over.
struct Operands {
  Layout a;
  Layout b;
  Layout o;
};

Operands operands(
    const Layout& z, Exchanged exchanged, bool incoming, const std::string& part, int ranks) {
  const char* const summed = incoming ? "i" : "j";  // of a and b
  const char* const other = incoming ? "j" : "i";
  const Layout whole = z.whole();
  if (exchanged == Exchanged::channels) {
    const Layout own = whole.cut("columns", even_cuts(z.columns().size, ranks));
    return {.a = own, .b = own, .o = own};
  }
  if (exchanged == Exchanged::scatter) {
    const bool only_summed = z.dims[z.place(other)].cuts.empty() && is_partition(z, ranks);
    if (ranks > 1 && !only_summed) {
      throw std::invalid_argument(
          part + ": 'scatter' makes terms of sums over '" + summed +
          "', each rank its own, but the tensor is sharded as " + to_string(z) +
          ": shard it along S(" + summed + "), or take another strategy");
    }
    return {.a = z, .b = z, .o = ranks > 1 ? whole.sum() : whole};
  }
  // o's rows are a's and its columns b's, both along `other` of their own
  const Cuts& i = z.dims[z.place("i")].cuts;
  const Cuts& j = z.dims[z.place("j")].cuts;
  return {.a = whole.cut(other, i), .b = whole.cut(other, j), .o = z};
}

Program build(const Task& task, Exchanged exchanged) {
  Writer w(task);
  const bool incoming = task.part->along == "i";
  const ValueId z = w.input();
  const Layout rows = w.layout(z);
  const std::int64_t C = task.shape().channels;
  const ValueId stack = w.gather();
  const ValueId zn = w.norm(z);
  const Layout made = rows.with_columns(C);
  std::int64_t first = 0;  // of the part's biases of first products, side by side
  const auto linear = [&](const char* matrix) {
    const ValueId y =
        w.linear(zn, {stack}, w.terms(stack, w.weights().rows(matrix)), matrix, Layout(made));
    const Piece entries = {{first, first + C}};
    first += C;
    return w.bias(y, Role::in_bias, entries);
  };
  const auto operand = [&](const char* projection, const char* gate) {
    const ValueId p = linear(projection);
    return w.gate(p, linear(gate));
  };
  const auto [of_a, of_b, of_o] =
      operands(made.along("j"), exchanged, incoming, task.part->name, w.ranks());
  const ValueId a = w.redistribute(operand("a", "a_gate"), by_channel(of_a), "a_all");
  const ValueId b = w.redistribute(operand("b", "b_gate"), by_channel(of_b), "b_all");
  const ValueId terms = w.triangle(a, b, incoming, by_channel(of_o));
  const ValueId o = w.norm(w.redistribute(terms, made, "o_T"), Role::last_norm);
  const ValueId y = w.linear(o, {stack}, w.terms(stack, w.weights().rows("o")), "y", Layout(rows));
  const ValueId g = w.bias(
      w.linear(zn, {stack}, w.terms(stack, w.weights().rows("gate")), "g", Layout(rows)),
      Role::gate);
  const Piece entries = {{first, first + rows.columns().size}};
  return w.residual(w.gate(w.bias(y, Role::in_bias, entries), g));
}

Program build_gather(const Task& task) { return build(task, Exchanged::gather); }
Program build_scatter(const Task& task) { return build(task, Exchanged::scatter); }
Program build_channels(const Task& task) { return build(task, Exchanged::channels); }

Strategy row(const char* name, Program (*build)(const Task&), const char* summary) {
  return {
      .kind = "triangle", .name = name, .verb = Verb::gather, .build = build, .summary = summary};
}

}  // namespace

Strategy triangle_gather() {
  return row("gather", build_gather, "an operand is gathered; so are weights");
}
Strategy triangle_scatter() {
  return row("scatter", build_scatter, "terms of all sums are scattered; weights are gathered");
}
Strategy triangle_channels() {
  return row(
      "channels", build_channels, "operands are switched to own channels; weights are gathered");
}

}  // namespace paradyse
