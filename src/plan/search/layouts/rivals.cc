// What others do, as a strategy and placements for each part.
#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/layout_planner.h"
#include "src/plan/search/layers/part_cost.h"

namespace paradyse {
namespace {

bool spatial(const std::string& part) { return part.starts_with("spatial"); }

// x and a strategy of attention in either block; the MLP gathers weights, or holds them.
struct VideoWay {
  const char* name = "";
  const char* spatial_cut = "";
  const char* spatial_core = "";
  const char* temporal_cut = "";
  const char* temporal_core = "";
  const char* mlp = "gather";
};

constexpr VideoWay kVideoWays[] = {
    {"dsp", "S(frames)", "Local", "S(patches)", "Local"},
    {"ulysses", "S(frames)", "Local", "S(frames)", "UlyssesZ"},
    {"ulysses-both", "S(frames)", "UlyssesZ", "S(frames)", "UlyssesZ"},
    {"ring", "S(frames)", "Local", "S(frames)", "MegatronCZ"},
    {"megatron-sp", "S(frames)", "MegatronTS", "S(frames)", "MegatronTS", "hold"},
    {"megatron-lm", "R", "MegatronTS", "R", "MegatronTS", "hold"}};

std::vector<LayoutRival> of_clips(const Model& model) {
  std::vector<LayoutRival> rivals;
  for (const VideoWay& way : kVideoWays) {
    LayoutRival& rival = rivals.emplace_back(LayoutRival{.name = way.name, .parts = {}});
    for (const Stack& stack : model.stacks()) {
      for (const std::shared_ptr<const Part>& part : stack.parts) {
        const bool first = spatial(part->name);
        const char* const core = first ? way.spatial_core : way.temporal_core;
        rival.parts.push_back(
            {.part = part->name,
             .strategy = part->kind == kCrossAttention ? "Local"
                         : attends(part->kind)         ? core
                                                       : way.mlp,
             .in = {{"x", {first ? way.spatial_cut : way.temporal_cut}}}});
      }
    }
  }
  return rivals;
}

// Of language models: a strategy of attention, one of the MLP, and where x lies.
struct TextWay {
  const char* name = "";
  const char* attention = "";
  const char* mlp = "";
  const char* place = "S(tokens)";
};

constexpr TextWay kTextWays[] = {
    {"ulysses", "UlyssesZ", "gather"},
    {"usp", "USP", "gather"},
    {"ring", "MegatronCZ", "gather"},
    {"all-gather-kv", "AllGatherKV", "gather"},
    {"metp", "METP", "pass"},
    {"megatron-sp", "MegatronTS", "hold"},
    {"megatron-lm", "MegatronTS", "hold", "R"}};

std::vector<LayoutRival> of_documents(const Model&) {
  std::vector<LayoutRival> rivals;
  for (const TextWay& way : kTextWays) {
    const std::map<std::string, Placement> in = {{"x", {way.place}}};
    rivals.push_back(
        {.name = way.name,
         .parts = {
             {.part = "attention", .strategy = way.attention, .in = in},
             {.part = "mlp", .strategy = way.mlp, .in = in}}});
  }
  return rivals;
}

// What a part of an Evoformer's layer is called, whichever stack it is in, and where its streams
// lie: the MSA, or extra sequences, by a row dim, and pairs.
struct AxialWay {
  const char* part = "";
  const char* strategy = "";
  int msa = -1;  // number of the dim; -1: it reads none
  const char* pair = "";
};

// Figure 4 of the publication: m is switched between its attentions and back, z between the
// triangle updates; what an update needs beside is gathered.
constexpr AxialWay kAxialWays[] = {
    {"row_attention", "Local", 0, "S(i)"},
    {"column_attention", "Local", 1},
    {"msa_transition", "gather", 1},
    {"outer_product_mean", "gather", 1, "S(i)"},
    {"triangle_outgoing", "gather", -1, "S(i)"},
    {"triangle_incoming", "gather", -1, "S(j)"},
    {"triangle_starting", "Local", -1, "S(i)"},
    {"triangle_ending", "Local", -1, "S(j)"},
    {"pair_transition", "gather", -1, "S(j)"}};

std::vector<LayoutRival> of_alignments(const Model& model) {
  LayoutRival rival{.name = "dap", .parts = {}};
  for (const Stack& stack : model.stacks()) {
    for (const std::shared_ptr<const Part>& part : stack.parts) {
      const auto* const way = std::ranges::find_if(
          kAxialWays, [&](const AxialWay& one) { return part->name.ends_with(one.part); });
      if (way == std::end(kAxialWays)) {
        throw std::invalid_argument("no layout of part '" + part->name + "' is known");
      }
      PartChoice choice{.part = part->name, .strategy = way->strategy};
      for (const std::string& read : part->reads) {
        const Stream& stream = model.stream(read);
        choice.in[read] = {read == "z" ? way->pair : "S(" + stream.rows.at(idx(way->msa)) + ")"};
      }
      rival.parts.push_back(std::move(choice));
    }
  }
  return {std::move(rival)};
}

// One row a family of models.
struct FamilyRivals {
  const char* family = "";
  std::vector<LayoutRival> (*of)(const Model& model) = nullptr;
};

constexpr FamilyRivals kRivals[] = {
    {"text", of_documents}, {"stdit", of_clips}, {"evoformer", of_alignments}};

}  // namespace

std::vector<LayoutRival> layout_rivals(const Model& model) {
  const auto* const row = std::ranges::find(kRivals, model.family, &FamilyRivals::family);
  return row == std::end(kRivals) ? std::vector<LayoutRival>() : row->of(model);
}

std::vector<LayoutWay> layout_ways(const LayoutTask& task) {
  const Model& model = *task.model;
  std::vector<LayoutWay> ways;
  ways.push_back({.name = "planned", .plan = plan_of(task, plan_layouts(task, model.layers))});
  LayoutTask of_rivals = task;
  of_rivals.documents.mesh.clear();
  for (LayoutRival& rival : layout_rivals(model)) {
    set_recompute(rival.parts, task.recompute);
    ways.push_back({.name = rival.name, .plan = plan_of(of_rivals, layers_of(model, rival.parts))});
  }
  return ways;
}

}  // namespace paradyse
