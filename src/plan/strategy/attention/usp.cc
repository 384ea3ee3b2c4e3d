// USP: a grid of Ulysses and ring (Fang & Zhao 2024); weights gathered (ZeRO-3).
//
// Rank i u + j of the group is member j of row i: the u members of a row trade tokens for heads, so
// that each has all the row's tokens with its own heads, and the members j of all rows are a ring.
// u = 1 is MegatronCZ's ring, u = p the exchange of UlyssesZ.
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

// The largest divisor of p whose square is at most p.
int squarest(int p) {
  int u = 1;
  for (int divisor = 2; divisor * divisor <= p; ++divisor) {
    u = p % divisor == 0 ? divisor : u;
  }
  return u;
}

std::string no_divisor(std::int64_t degree, const Task& task) {
  const int p = task.documents.ranks();
  return p % degree == 0 ? ""
                         : "a group of " + std::to_string(p) + " ranks is not a multiple of it";
}

// Grids of another form; 1 and all ranks would be MegatronCZ and UlyssesZ.
std::vector<std::int64_t> other_degrees(const Task& task) {
  const int p = task.documents.ranks();
  std::vector<std::int64_t> others;
  for (int u = 2; u < p; ++u) {
    if (p % u == 0 && u != squarest(p)) {
      others.push_back(u);
    }
  }
  return others;
}

Program build_usp(const Task& task) {
  const PartShape& shape = task.shape();
  const int p = task.documents.ranks();
  const auto u = static_cast<int>(task.option("ulysses_degree", squarest(p)));
  Writer w(task);

  const std::vector<Heads> of_member = own_heads(shape, u);
  std::vector<Heads> heads;
  Cuts tokens;
  Cuts kv_columns;
  for (int r = 0; r < p; ++r) {
    const int first_of_row = r - r % u;
    const auto row = std::span(task.documents.cuts).subspan(idx(first_of_row));
    tokens.push_back(together(row.first(idx(u))));
    heads.push_back(of_member[idx(r % u)]);
    const std::int64_t values = shape.kv_heads * shape.head_dim;
    Piece& columns = kv_columns.emplace_back();
    for (const std::int64_t first : {std::int64_t{0}, values}) {
      append(
          columns,
          {first + heads.back().key.begin * shape.head_dim,
           first + heads.back().key.end * shape.head_dim});
    }
  }

  // To the tokens of a row's members together, with these columns of each rank.
  const auto to_row = [&](ValueId x, Cuts columns, const char* name) {
    const std::int64_t width = w.layout(x).columns().size;
    const Layout row = w.all_rows(width, std::move(columns)).cut("tokens", tokens);
    return u == 1 ? x : w.redistribute(x, row, name);
  };
  const ValueId stack = w.gather();
  const auto [q, kv] = w.q_and_kv(w.normed_input(), stack, all_heads(shape, 1)[0]);
  const ValueId o = w.ring_attention(
      to_row(q, output_columns(shape, heads), "q_row"), to_row(kv, kv_columns, "kv_row"), heads, u);
  const ValueId o_T = u == 1 ? o : w.redistribute(o, w.own_rows(w.layout(o).columns().size), "o_T");
  return w.residual(
      w.linear_transposed(o_T, stack, w.terms(stack, w.weights().rows("o")), w.layout(w.input())));
}

}  // namespace

Strategy usp() {
  return {
      .kind = "attention",
      .name = "USP",
      .verb = Verb::gather,
      .build = build_usp,
      .options =
          {{.name = "ulysses_degree",
            .meaning = "USP: ranks of the Ulysses dimension (default: as square a grid as the "
                       "ranks allow)",
            .why_not = no_divisor,
            .candidates = other_degrees}},
      .summary = "a grid of UlyssesZ and MegatronCZ; weights are gathered"};
}

}  // namespace paradyse
