#include "src/plan/search/layouts/samples.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/plan/size_limits.h"

namespace paradyse {

Documents samples_of(
    const Model& model,
    const DimSizes& dims,
    std::int64_t batch,
    int ranks,
    const std::vector<int>& mesh) {
  for (const auto& [dim, size] : dims) {
    if (!model.has_dim(dim)) {
      throw std::invalid_argument(fmt::format("{}: model {} has no such dim", dim, model.name));
    }
    if (size < 1 || size > kMostOfDim) {
      throw std::invalid_argument(
          fmt::format("{} is {}: a dim has 1 to {} elements", dim, size, kMostOfDim));
    }
  }
  for (const Stream& stream : model.streams) {
    for (const std::string& dim : stream.rows) {
      if (dim != "batch" && !dims.contains(dim)) {
        throw std::invalid_argument(
            fmt::format("model {} needs the size of its dim '{}'", model.name, dim));
      }
    }
  }
  Documents documents =
      packed(std::vector<std::int64_t>(idx(batch), model.rows(dims)), ranks, model.causal);
  if (!model.of_samples()) {
    if (!mesh.empty()) {
      throw std::invalid_argument(
          "--mesh: documents have one dim (tokens), which one axis shards; leave --mesh out");
    }
    return documents;
  }
  documents.dims = dims;
  if (!mesh.empty() && (mesh.size() != 2 || mesh[0] * mesh[1] != ranks)) {
    throw std::invalid_argument(fmt::format(
        "--mesh {}: two numbers whose product is {}, the ranks of a group, are needed",
        fmt::join(mesh, ","),
        ranks));
  }
  documents.mesh = mesh;
  return documents;
}

std::vector<std::string> given_dims(const Model& model) {
  const bool pairs = model.has_dim("residues");
  std::vector<std::string> dims;
  for (const Stream& stream : model.streams) {
    for (const std::string& dim : stream.rows) {
      const bool follows = dim == "batch" || (pairs && (dim == "i" || dim == "j"));
      if (!follows && std::ranges::find(dims, dim) == dims.end()) {
        dims.push_back(dim);
      }
    }
  }
  return dims;
}

DimSizes with_pairs(const Model& model, DimSizes given) {
  for (const char* const dim : {"i", "j"}) {
    if (model.has_dim(dim) && given.contains("residues")) {
      given.emplace(dim, given.at("residues"));
    }
  }
  return given;
}

}  // namespace paradyse
