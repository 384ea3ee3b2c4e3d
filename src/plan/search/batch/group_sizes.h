// Why a document or sample runs where it does: what it takes alone on groups of each size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "src/plan/base/json_node.h"
#include "src/plan/search/batch/document_plans.h"

namespace paradyse {

// Groups of so many ranks.
struct GroupSize {
  // The fastest way that fits, else the one that needs least; of documents, of those that run all
  // layers alike.
  struct Item {
    std::int64_t tokens = 0;  // or rows of a sample
    std::string program = {};
    std::optional<double> seconds = {};  // forward and backward, predicted
    std::int64_t peak_bytes = 0;
    bool fits = false;
    DimSizes dims = {};  // of a sample

    friend bool operator==(const Item&, const Item&) = default;
  };
  int ranks = 1;
  // Tokens of the longest document that fits, by the same estimates; none: there is no limit, or
  // these are samples.
  std::optional<std::int64_t> longest = {};
  std::vector<Item> by_length = {};

  friend bool operator==(const GroupSize&, const GroupSize&) = default;
};

// `tried`: sizes that a batch planner chooses among.  One on which nothing can run is left out.
// Reads estimates alone: later plans are not changed by it.
std::vector<GroupSize> group_sizes(
    DocumentPlans& documents,
    const std::vector<int>& tried,
    const std::vector<std::int64_t>& lengths);

// As run folders have it, in group_sizes.json; reading throws std::invalid_argument naming the
// place.
nlohmann::ordered_json json_of(const std::vector<GroupSize>& sizes);
std::vector<GroupSize> group_sizes_from(const JsonNode& node);

}  // namespace paradyse
