#include "src/cli/grid_options.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "src/plan/base/rank_limits.h"
#include "src/plan/plan/size_limits.h"
#include "src/plan/search/layouts/samples.h"

namespace paradyse::cli {
namespace {

// The dims of streams that options size.
struct DimOption {
  const char* dim;
  const char* option;
  std::int64_t GridOptions::* value;
};
constexpr DimOption kDims[] = {
    {"tokens", "--tokens", &GridOptions::tokens},
    {"patches", "--tokens", &GridOptions::tokens},
    {"frames", "--frames", &GridOptions::frames},
    {"text", "--text-tokens", &GridOptions::text},
    {"sequences", "--sequences", &GridOptions::sequences},
    {"extra_sequences", "--extra-sequences", &GridOptions::extra_sequences},
    {"residues", "--residues", &GridOptions::residues},
    {"i", "--residues", &GridOptions::residues},
    {"j", "--residues", &GridOptions::residues}};

[[noreturn]] void refuse(const char* option, const GridOptions& options, const Model& model) {
  throw std::invalid_argument(
      !model.of_samples()
          ? fmt::format(
                "{} is for video and protein models; --model {} is a language model, whose "
                "documents have {}",
                option,
                options.model,
                options.length_option)
      : option == std::string("--text-tokens") && model.has_dim("frames")
          ? fmt::format(
                "--text-tokens: --model {} has no caption_channels, so it does not attend to text",
                options.model)
          : fmt::format("{} does not apply to a model of type {}", option, model.family));
}

// Throws for an option of dims or sizes that the model does not have.
void expect_options_of(const Model& model, const GridOptions& options) {
  // of documents, too, where their lengths are no option of their own
  const bool sized = model.of_samples() || options.length_option == std::string_view("--tokens");
  for (const DimOption& one : kDims) {
    const bool known = std::ranges::any_of(kDims, [&](const DimOption& other) {
      return other.value == one.value && model.has_dim(other.dim);
    });
    if (options.*one.value > 0 && (!known || !sized)) {
      refuse(one.option, options, model);
    }
  }
  const bool video = model.has_dim("frames");
  if (options.width > 0 && !video) {
    refuse("--width", options, model);
  }
  if (options.kv_ratio > 0 && !video) {
    refuse("--kv-ratio", options, model);
  }
  if (options.batch > 1 && (!sized || (model.of_samples() && !model.has_dim("batch")))) {
    refuse("--batch", options, model);
  }
  if (!options.mesh.empty() && !sized) {
    refuse("--mesh", options, model);
  }
}

// A model of other sizes, as an option says.
Model resized(const Model& model, const std::string& option, const OtherSizes& sizes) {
  try {
    return with_sizes(model, sizes);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(fmt::format("{}: {}", option, error.what()));
  }
}

// A video model of another width, or with fewer key and value heads.
Model resized(Model model, const GridOptions& options) {
  if (options.width > 0) {
    model = resized(model, fmt::format("--width {}", options.width), {.hidden = options.width});
  }
  if (options.kv_ratio > 0) {
    const std::string option = fmt::format("--kv-ratio {}", options.kv_ratio);
    const std::int64_t all = model.typical_part().heads;
    const double heads = options.kv_ratio * static_cast<double>(all);
    if (heads < 1 || std::abs(heads - std::round(heads)) > 1e-9) {
      throw std::invalid_argument(fmt::format(
          "{}: for {} heads this gives {} key/value heads; it must be a whole number that divides "
          "the heads",
          option,
          all,
          heads));
    }
    model = resized(model, option, {.kv_heads = std::llround(heads)});
  }
  return model;
}

}  // namespace

void add_grid_options(Command& command, GridOptions& options) {
  command
      .add_option(
          "--model",
          options.model,
          "Preset (stdit, evoformer, extra-msa), TOML model file or model folder, also of a "
          "language model")
      ->required();
  add_sample_options(command, options);
}

void add_sample_options(Command& command, GridOptions& options) {
  command
      .add_option(
          "--mesh",
          options.mesh,
          "Sizes of the mesh axes, as in 2,4 (default: one axis); each axis shards one dim")
      ->delimiter(',')
      ->transform(whole_numbers(1, kMostLayoutRanks));
  command.add_option("--batch", options.batch, "Number of samples (video model) or documents")
      ->transform(whole_numbers(1, kMostSamples))
      ->capture_default_str();
  const auto size = [&](const char* name, std::int64_t& value, const char* what) {
    command.add_option(name, value, what)->transform(whole_numbers(1, kMostOfDim));
  };
  size("--frames", options.frames, "Frames of a video in latent space");
  size("--tokens", options.tokens, "Patches of a frame, or tokens of a document");
  size("--text-tokens", options.text, "Tokens of a caption, if the model has caption_channels");
  size("--sequences", options.sequences, "Sequences of an alignment");
  size(
      "--extra-sequences",
      options.extra_sequences,
      "Sequences of an alignment beyond those, if the model has no_extra_blocks");
  size("--residues", options.residues, "Residues of a sequence");
  size("--width", options.width, "Hidden width instead of the model's");
  command
      .add_option(
          "--kv-ratio",
          options.kv_ratio,
          "Key/value heads divided by query heads (default: the model's)")
      ->check(numbers(0.001, 1));
}

bool says_samples(const GridOptions& options) {
  return options.batch > 1 || !options.mesh.empty() ||
         std::ranges::any_of(kDims, [&](const DimOption& one) { return options.*one.value > 0; });
}

std::string sizes_of(const Model& model) {
  std::string text;
  for (const DimOption& one : kDims) {
    const std::string size = std::string(one.option) + " N";
    if (model.has_dim(one.dim) && text.find(size) == std::string::npos) {
      text += (text.empty() ? "" : " ") + size;
    }
  }
  return text;
}

ModelFolder model_of(const GridOptions& options, bool random_weights) {
  ModelFolder folder =
      reading([&] { return open_model(options.model, random_weights); }, "--model");
  Model& model = folder.model;
  expect_options_of(model, options);
  model = without_dropout(resized(model, options));
  expect_positions(options, model, options.tokens);
  return folder;
}

Documents documents_of(const GridOptions& options, const Model& model, int ranks) {
  DimSizes dims;
  for (const DimOption& one : kDims) {
    if (!model.has_dim(one.dim)) {
      continue;
    }
    if (options.*one.value < 1) {
      throw std::invalid_argument(
          fmt::format("--model {} needs {}: the size of its input", options.model, one.option));
    }
    dims[one.dim] = options.*one.value;
  }
  if (const std::string why = more_than_counted(model, dims, options.batch); !why.empty()) {
    std::string given;
    const char* before = "";
    for (const DimOption& one : kDims) {  // those of one option stand together
      if (options.*one.value > 0 && std::string_view(one.option) != before) {
        given.append(one.option).append(" ").append(std::to_string(options.*one.value)).append(" ");
      }
      before = one.option;
    }
    throw std::invalid_argument(
        fmt::format("{}--batch {}: too large: {}; give smaller sizes", given, options.batch, why));
  }
  return samples_of(model, dims, options.batch, ranks, options.mesh);
}

void expect_positions(const GridOptions& options, const Model& model, std::int64_t tokens) {
  const LengthLimit& longest = model.limits.longest;
  if (!longest.allows(tokens)) {
    throw std::invalid_argument(fmt::format(
        "--tokens {}: --model {}: {}; give at most {}",
        tokens,
        options.model,
        longest.why,
        longest.tokens));
  }
}

Cluster cluster_of(const std::string& file, int ranks) {
  Cluster cluster = read_cluster(file);
  if (cluster.ranks() < ranks) {
    throw std::invalid_argument(fmt::format("--ranks {}: {} has {}", ranks, file, cluster.ranks()));
  }
  return cluster;
}

}  // namespace paradyse::cli
