#include "paradyse/plan/detail/placement.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/text_match.h"

namespace paradyse {
namespace {

constexpr const char* kTokens = "tokens";
constexpr const char* kColumns = "columns";

std::int64_t size_of(const std::string& dim, const Documents& documents) {
  if (documents.lengths.empty()) {
    return 0;  // of an idle rank: it has no rows
  }
  if (dim == kTokens) {
    return documents.tokens();
  }
  if (dim == "batch") {
    return static_cast<std::int64_t>(documents.lengths.size());
  }
  const auto found = documents.dims.find(dim);
  if (found == documents.dims.end()) {
    throw std::invalid_argument(
        "dim '" + dim +
        "' has no size: say it in the dims of the plan, or of its group, as in {\"" + dim +
        "\": 16}");
  }
  return found->second;
}

Layout whole(const Stream& stream, const Documents& documents) {
  Layout layout;
  for (const std::string& dim : stream.rows) {
    if (dim == kColumns) {
      throw std::invalid_argument(
          "a row dim of " + stream.name + " is called '" + dim +
          "', like its last dim: give it another name");
    }
    layout.dims.push_back({.name = dim, .size = size_of(dim, documents)});
  }
  layout.dims.push_back({.name = kColumns, .size = stream.columns});
  return layout;
}

// [piece] Of the dim in so many pieces.
Cuts pieces_of(const Dim& dim, const Documents& documents, int pieces) {
  if (dim.name != kTokens) {
    return even_cuts(dim.size, pieces);
  }
  return pieces == documents.ranks() ? documents.cuts
                                     : token_cuts(documents.lengths, pieces, documents.causal);
}

}  // namespace

std::vector<std::string> cut_dims(const Placement& placement) {
  std::vector<std::string> dims;
  for (const std::string& text : placement) {
    const bool cut = text.size() > 3 && text.starts_with("S(") && text.ends_with(')');
    if (!cut && text != "R") {
      throw std::invalid_argument(
          "'" + text +
          "' is not a placement: write \"S(dim)\", sharded along a dim, or \"R\", replicated");
    }
    dims.push_back(cut ? text.substr(2, text.size() - 3) : "");
  }
  return dims;
}

std::string to_string(const Placement& placement) { return joined(placement, ", "); }

Layout home(const Stream& stream, const Documents& documents) {
  Layout layout = whole(stream, documents);
  if (stream.home.empty()) {
    return layout;
  }
  Dim& dim = layout.dims[layout.place(stream.home)];
  dim.cuts = pieces_of(dim, documents, documents.ranks());
  return layout;
}

Layout placed(const Stream& stream, const Documents& documents, const Placement& placement) {
  const std::vector<int> axes =
      documents.mesh.empty() ? std::vector<int>{documents.ranks()} : documents.mesh;
  if (placement.size() != axes.size()) {
    throw std::invalid_argument(
        std::to_string(placement.size()) + " placements of " + stream.name + " for a mesh of " +
        std::to_string(axes.size()) + (axes.size() == 1 ? " axis" : " axes") +
        ": give one for each");
  }
  const std::vector<std::string> dims = cut_dims(placement);
  Layout layout = whole(stream, documents);
  std::set<std::string> cut;
  int stride = documents.ranks();  // from a rank to the next along the axis
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    stride /= axes[axis];
    const std::string& name = dims[axis];
    if (name.empty()) {
      continue;
    }
    if (!cut.insert(name).second) {
      throw std::invalid_argument(
          "two axes shard dim '" + name + "' of " + stream.name + ": only one axis shards a dim");
    }
    Dim& dim = layout.dims[layout.place(name)];
    const Cuts pieces = pieces_of(dim, documents, axes[axis]);
    for (int rank = 0; rank < documents.ranks(); ++rank) {
      dim.cuts.push_back(pieces[idx(rank / stride % axes[axis])]);
    }
  }
  return layout;
}

}  // namespace paradyse
