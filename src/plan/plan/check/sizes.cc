#include <set>

#include "src/plan/base/plan_path.h"
#include "src/plan/plan/check/findings.h"

namespace paradyse::check {
namespace {

// More tokens than any batch has: a bound below which counts of bytes and operations fit 64 bits.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

// Row dims of the model's streams, beside those that the documents give.
std::set<std::string> dims_of(const Model& model) {
  std::set<std::string> dims;
  for (const Stream& stream : model.streams) {
    dims.insert(stream.rows.begin(), stream.rows.end());
  }
  dims.erase("tokens");
  dims.erase("batch");
  return dims;
}

void check_dims(Findings& findings) {
  for (const auto& [name, size] : findings.plan.dims) {
    const std::string path = path_to("dims", name);
    if (size < 1) {
      findings.say(path, text(size) + ": a dim has at least 1 element");
    }
    if (!findings.model) {
      continue;
    }
    const std::set<std::string> there = dims_of(*findings.model);
    if (!there.contains(name)) {
      std::string list;
      for (const std::string& dim : there) {
        list.append(list.empty() ? "" : ", ").append(dim);
      }
      findings.say(
          path,
          list.empty() ? "the model's documents have tokens and nothing else: leave it out"
                       : "no stream of the model has this dim; there are " + list);
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
  require(
      findings.plan.weight_domain >= 1 && findings.plan.ranks % findings.plan.weight_domain == 0,
      "weight_domain",
      text(findings.plan.weight_domain) + " does not divide the cluster's " +
          text(findings.plan.ranks) + " ranks: domains are equal runs of neighbouring ranks");
  findings.domains_sound = findings.sizes_sound;
  require(
      findings.plan.layers >= 0,
      "model.layers",
      text(findings.plan.layers) + " layers: a model has 0 or more");
  if (findings.model) {
    const CheckContext& context = findings.context;
    const std::string here =
        context.model != nullptr ? context.model->architecture : architecture(*context.grid);
    require(
        findings.plan.layers == findings.model->layers,
        "model.layers",
        "the plan has " + text(findings.plan.layers) + " layers, the model " +
            text(findings.model->layers) + ": it is for '" + findings.plan.model_name +
            "', here is a " + here + "; plan for this model");
    const std::string ours =
        context.model != nullptr ? fingerprint(*context.model) : fingerprint(*context.grid);
    require(
        findings.plan.model_sha256.empty() || findings.plan.model_sha256 == ours,
        "model.sha256",
        "the plan is for a model '" + findings.plan.model_name + "' " + findings.plan.model_sha256 +
            ", this one is a " + here + " " + ours + ": plan for this model");
    if (layer_parts(findings.plan.model_name) != layer_parts(here)) {
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
    const bool fits = n <= kMostTokens - tokens;
    require(
        fits,
        path_to("lengths", d),
        text(n) + " tokens: a batch has at most " + text(kMostTokens) + " in all");
    tokens += n >= 0 && fits ? n : 0;
    const std::int64_t positions = findings.model ? findings.model->positions() : 0;
    require(
        positions == 0 || n <= positions,
        path_to("lengths", d),
        "document " + text(d) + " has " + text(n) + " tokens: the model has learned " +
            text(positions) + " positions: cut it");
  }
  check_dims(findings);
}

}  // namespace paradyse::check
