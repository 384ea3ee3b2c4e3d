#include "src/plan/search/batch/group_sizes.h"

#include <algorithm>

namespace paradyse {
namespace {

GroupSize::Item document_of(
    DocumentPlans& documents,
    const std::vector<LayerChoice>& layers,
    std::int64_t tokens,
    int ranks) {
  GroupSize::Item best;
  for (const LayerChoice& layer : layers) {
    const DocumentPlans::Estimate e = documents.estimate(layer, tokens, ranks);
    const GroupSize::Item one{
        .tokens = tokens,
        .program = name(layer),
        .seconds = ranks == documents.task().ranks ? e.wall : e.busy,
        .peak_bytes = e.peak,
        .fits = documents.fits(e.peak, tokens)};
    const bool better = one.fits != best.fits ? one.fits
                        : one.fits            ? one.seconds < best.seconds
                                              : one.peak_bytes < best.peak_bytes;
    if (best.program.empty() || better) {
      best = one;
    }
  }
  return best;
}

}  // namespace

std::vector<GroupSize> group_sizes(
    DocumentPlans& documents,
    const std::vector<int>& tried,
    const std::vector<std::int64_t>& lengths) {
  const PlanningTask& task = documents.task();
  std::vector<GroupSize> sizes;
  for (const int ranks : tried) {
    const std::vector<LayerChoice>& layers =
        ranks == 1 && task.ranks > 1 ? documents.whole() : documents.costs().of(ranks).uniform();
    if (layers.empty()) {
      continue;
    }
    GroupSize& size = sizes.emplace_back(GroupSize{.ranks = ranks});
    if (task.memory_per_rank > 0) {
      std::int64_t longest = 0;
      for (const LayerChoice& layer : layers) {
        longest = std::max(longest, documents.longest(layer, ranks));
      }
      size.longest = longest;
    }
    for (const std::int64_t tokens : lengths) {
      size.by_length.push_back(document_of(documents, layers, tokens, ranks));
    }
  }
  return sizes;
}

nlohmann::ordered_json json_of(const std::vector<GroupSize>& sizes) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const GroupSize& size : sizes) {
    nlohmann::ordered_json items = nlohmann::ordered_json::array();
    for (const GroupSize::Item& of : size.by_length) {
      nlohmann::ordered_json& item = items.emplace_back();
      item["tokens"] = of.tokens;
      if (!of.dims.empty()) {
        item["dims"] = of.dims;
      }
      item["program"] = of.program;
      if (of.seconds) {
        item["seconds"] = *of.seconds;
      }
      item["peak_bytes"] = of.peak_bytes;
      item["fits"] = of.fits;
    }
    nlohmann::ordered_json& one = json.emplace_back();
    one["ranks"] = size.ranks;
    if (const std::optional<std::int64_t> longest = size.longest) {
      one["longest"] = *longest;
    }
    one["by_length"] = std::move(items);
  }
  return json;
}

std::vector<GroupSize> group_sizes_from(const JsonNode& node) {
  std::vector<GroupSize> sizes;
  for (const JsonNode& one : node.elements()) {
    GroupSize& size = sizes.emplace_back(GroupSize{.ranks = one.at("ranks").integer<int>(1)});
    if (one.has("longest")) {
      size.longest = one.at("longest").integer<std::int64_t>(0);
    }
    for (const JsonNode& item : one.at("by_length").elements()) {
      GroupSize::Item& of = size.by_length.emplace_back(GroupSize::Item{
          .tokens = item.at("tokens").integer<std::int64_t>(1),
          .program = item.at("program").text(),
          .peak_bytes = item.at("peak_bytes").integer<std::int64_t>(0),
          .fits = item.at("fits").truth()});
      if (item.has("dims")) {
        for (const auto& [dim, its] : item.at("dims").members()) {
          of.dims[dim] = its.integer<std::int64_t>(1);
        }
      }
      if (item.has("seconds")) {
        of.seconds = item.at("seconds").number_from_0();
      }
    }
    if (size.by_length.size() != sizes.front().by_length.size()) {
      one.at("by_length").fail("expected as many lengths as of the first size");
    }
  }
  return sizes;
}

}  // namespace paradyse
