#include "src/plan/search/batch/group_sizes.h"

#include <algorithm>

namespace paradyse {
namespace {

GroupSize::Document document_of(
    DocumentPlans& documents,
    const std::vector<LayerChoice>& layers,
    std::int64_t tokens,
    int ranks) {
  GroupSize::Document best;
  for (const LayerChoice& layer : layers) {
    const DocumentPlans::Estimate e = documents.estimate(layer, tokens, ranks);
    const GroupSize::Document one{
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
    nlohmann::ordered_json documents = nlohmann::ordered_json::array();
    for (const GroupSize::Document& one : size.by_length) {
      documents.push_back(
          {{"tokens", one.tokens},
           {"program", one.program},
           {"seconds", one.seconds},
           {"peak_bytes", one.peak_bytes},
           {"fits", one.fits}});
    }
    nlohmann::ordered_json& one = json.emplace_back();
    one["ranks"] = size.ranks;
    if (const std::optional<std::int64_t> longest = size.longest) {
      one["longest"] = *longest;
    }
    one["by_length"] = std::move(documents);
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
    for (const JsonNode& document : one.at("by_length").elements()) {
      size.by_length.push_back(
          {.tokens = document.at("tokens").integer<std::int64_t>(1),
           .program = document.at("program").text(),
           .seconds = document.at("seconds").number_from_0(),
           .peak_bytes = document.at("peak_bytes").integer<std::int64_t>(0),
           .fits = document.at("fits").truth()});
    }
    if (size.by_length.size() != sizes.front().by_length.size()) {
      one.at("by_length").fail("expected as many lengths as of the first size");
    }
  }
  return sizes;
}

}  // namespace paradyse
