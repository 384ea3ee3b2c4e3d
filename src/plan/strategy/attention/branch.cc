// Branch: the normed input is switched to where its lines are whole, and what attention makes of it
// back, while the stream stays (Zhao et al. 2024 switch the stream instead); weights gathered
// (ZeRO-3).
#include <algorithm>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"
#include "src/plan/strategy/attention/places.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

std::string no_such_dim(std::int64_t number, const Task& task) {
  if (task.part == nullptr || task.streams.empty()) {
    return "";
  }
  const Layout& rows = task.streams.at(task.part->reads.front());
  const auto dims = std::ssize(other_rows(rows, task.part->along));
  return number <= dims ? "" : "there are " + std::to_string(dims) + " other dims";
}

Program build_branch(const Task& task) {
  Writer w(task);
  const Layout rows = w.layout(w.input());
  const std::string& along = task.part->along;
  const std::vector<const Dim*> dims = other_rows(rows, along);
  if (dims.empty()) {
    throw std::invalid_argument(
        task.part->name + ": 'Branch' switches to another dim, and there is only '" + along + "'");
  }
  const auto longest = std::ranges::max_element(dims, {}, [](const Dim* dim) { return dim->size; });
  const auto number = task.option("branch_dim", longest - dims.begin() + 1);
  const Dim& dim = *dims.at(idx(number - 1));
  const Layout away = w.lined_up(rows.whole()).cut(dim.name, even_cuts(dim.size, w.ranks()));
  return attention_at(
      w,
      task.shape(),
      {.own = away,
       .at = away,
       .heads = all_heads(task.shape(), w.ranks()),
       .tiles = task.option(kTilesOption, 1)});
}

}  // namespace

Strategy branch_attention() {
  return {
      .kind = kAxialAttention,
      .name = "Branch",
      .verb = Verb::gather,
      .build = build_branch,
      .options =
          {{.name = "branch_dim",
            .meaning = "Branch: number of the row dim that is sharded meanwhile, among those not "
                       "attended along (default: the longest)",
            .why_not = no_such_dim},
           line_tiles_option()},
      .summary =
          "reshards the branch so that each line is on one rank, and back; weights are gathered"};
}

}  // namespace paradyse
