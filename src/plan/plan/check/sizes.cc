#include <algorithm>
#include <set>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/plan_path.h"
#include "src/plan/base/text_match.h"
#include "src/plan/plan/check/findings.h"
#include "src/plan/plan/size_limits.h"

namespace paradyse::check {
namespace {

// Row dims of the model's streams, beside those that the documents give.
std::set<std::string> known_dims(const Model& model) {
  std::set<std::string> dims;
  for (const Stream& stream : model.streams) {
    dims.insert(stream.rows.begin(), stream.rows.end());
  }
  dims.erase("tokens");
  dims.erase("batch");
  return dims;
}

// Of the plan or of a group, so many of whose samples run together.
void check_dims(
    Findings& findings, const DimSizes& dims, const std::string& at, std::size_t samples) {
  for (const auto& [name, size] : dims) {
    const std::string path = path_to(at, name);
    if (size < 1 || size > kMostOfDim) {
      findings.say(path, text(size) + ": a dim has 1 to " + text(kMostOfDim) + " elements");
      findings.sizes_sound = false;
    }
    if (!findings.model) {
      continue;
    }
    const std::set<std::string> there = known_dims(*findings.model);
    if (!there.contains(name)) {
      findings.say(
          path,
          there.empty() ? "the model's documents have tokens and nothing else: leave it out"
                        : "no tensor of the model has this dim; there are " + joined(there, ", "));
    }
  }
  const auto residues = dims.find("residues");
  for (const char* const dim : {"i", "j"}) {  // of a pair of residues
    const auto found = dims.find(dim);
    if (residues != dims.end() && found != dims.end() && found->second != residues->second) {
      findings.say(
          path_to(at, dim),
          text(found->second) + ": i and j number the pairs of " + text(residues->second) +
              " residues; give residues, i and j the same size");
    }
  }
  if (!findings.sizes_sound || !findings.model) {
    return;
  }
  for (const Stream& stream : findings.model->streams) {
    std::int64_t most = kMostRows / std::max<std::int64_t>(1, static_cast<std::int64_t>(samples));
    for (const std::string& dim : stream.rows) {
      const auto found = dims.find(dim);
      most /= found == dims.end() ? 1 : found->second;
    }
    if (most < 1) {
      findings.say(
          at,
          "stream " + stream.name + " has more rows than " + text(kMostRows) +
              ": that is more than any batch has");
      findings.sizes_sound = false;
    }
  }
}

void check_rows(Findings& findings, const Model& model, const PlanGroup& group) {
  const DimSizes& dims = dims_of(findings.plan, group);
  for (const std::string& dim : model.streams.front().rows) {
    if (dim != "batch" && !dims.contains(dim)) {
      return;  // whoever builds it says so
    }
  }
  const std::int64_t rows = model.rows(dims);
  for (const std::int64_t document : group.documents) {
    if (findings.document_exists(document) && findings.plan.lengths[idx(document)] != rows) {
      findings.say(
          path_to("lengths", idx(document)),
          text(findings.plan.lengths[idx(document)]) + " rows, and by its dims the sample has " +
              text(rows));
    }
  }
}

}  // namespace

void check_sizes(Findings& findings) {
  findings.sizes_sound = true;
  const auto require = [&](bool sound, const std::string& path, const std::string& what) {
    if (!sound) {
      findings.say(path, what);
      findings.sizes_sound = false;
    }
  };
  require(
      findings.plan.ranks >= 1,
      "cluster.ranks",
      text(findings.plan.ranks) + " ranks: at least 1 is needed");
  const std::size_t devices = findings.context.memory_of_ranks.size();
  require(
      devices == 0 || static_cast<std::int64_t>(devices) == findings.plan.ranks,
      "cluster.ranks",
      "the plan is for " + text(findings.plan.ranks) + " ranks, the cluster has " + text(devices) +
          ": plan for these, or check it with --ranks " + text(findings.plan.ranks));
  require(
      findings.plan.weight_domain >= 1 && findings.plan.ranks % findings.plan.weight_domain == 0,
      "weight_domain",
      text(findings.plan.weight_domain) + " does not divide the cluster's " +
          text(findings.plan.ranks) +
          " ranks: sharding groups are equal runs of neighbouring ranks");
  const Messages messages = findings.plan.messages;
  if (messages.reshard_after_forward && !messages.reshard_after_backward) {
    findings.say(
        "reshard_after_forward",
        "weights that are kept after the backward pass ('reshard_after_backward' is false) are "
        "kept after the forward pass, too: leave the key out, or say false");
  }
  findings.domains_sound = findings.sizes_sound;
  require(
      findings.plan.layers >= 0,
      "model.layers",
      text(findings.plan.layers) + " layers: a model has 0 or more");
  if (findings.model) {
    const std::string here = findings.model->name;
    require(
        findings.plan.layers == findings.model->layers,
        "model.layers",
        "the plan has " + text(findings.plan.layers) + " layers, the model " +
            text(findings.model->layers) + ": it is for '" + findings.plan.model_name +
            "', here is a " + here + "; plan for this model");
    const std::string ours = findings.model->sha256;
    require(
        findings.plan.model_sha256.empty() || findings.plan.model_sha256 == ours,
        "model.sha256",
        "the plan is for a model '" + findings.plan.model_name + "' " + findings.plan.model_sha256 +
            ", this one is a " + here + " " + ours + ": plan for this model");
    if (layer_kinds(findings.plan.model_name) != layer_kinds(here)) {
      require(
          false,
          "model.name",
          "the layers of a '" + findings.plan.model_name + "' have other parts than those of a " +
              here + ": plan for this model");
      findings.model.reset();  // nothing can be asked of its parts
    }
  }
  std::int64_t tokens = 0;
  for (std::size_t d = 0; d < findings.plan.lengths.size(); ++d) {
    const std::int64_t n = findings.plan.lengths[d];
    require(n >= 0, path_to("lengths", d), text(n) + " tokens: a document has 0 or more");
    const bool fits = n <= kMostRows - tokens;
    require(
        fits,
        path_to("lengths", d),
        text(n) + " tokens: a batch has at most " + text(kMostRows) + " in all");
    tokens += n >= 0 && fits ? n : 0;
    const LengthLimit longest = findings.model ? findings.model->limits.longest : LengthLimit{};
    require(
        longest.allows(n),
        path_to("lengths", d),
        "document " + text(d) + " has " + text(n) + " tokens: " + longest.why + ": cut it");
  }
  check_dims(findings, findings.plan.dims, "dims", findings.plan.lengths.size());
  for (std::size_t m = 0; m < findings.plan.micro_batches.size(); ++m) {
    const std::vector<PlanGroup>& groups = findings.plan.micro_batches[m].groups;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      check_dims(
          findings,
          groups[g].dims,
          path_to(path_to("micro_batches", m) + ".groups", g) + ".dims",
          groups[g].documents.size());
      if (findings.sizes_sound && findings.model && findings.model->of_samples()) {
        check_rows(findings, *findings.model, groups[g]);
      }
    }
  }
}

}  // namespace paradyse::check
