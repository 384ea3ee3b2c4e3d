#include "src/cli/grid_options.h"

#include <cmath>
#include <filesystem>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/index.h"

namespace paradyse::cli {
namespace {

std::int64_t needed(const char* option, std::int64_t value, const std::string& model) {
  if (value < 1) {
    throw std::invalid_argument(
        fmt::format("--model {} needs {}: the size of its input", model, option));
  }
  return value;
}

void refuse_other(const char* option, bool given, const std::string& type) {
  if (given) {
    throw std::invalid_argument(
        fmt::format("{} does not apply to a model of type {}", option, type));
  }
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
  command
      .add_option(
          "--mesh",
          options.mesh,
          "Sizes of the mesh axes, as in 2,4 (default: one axis); each axis shards one dim")
      ->delimiter(',')
      ->transform(whole_numbers(1, 4096));
  command.add_option("--batch", options.batch, "Number of samples (video model) or documents")
      ->transform(whole_numbers(1, 1 << 20))
      ->capture_default_str();
  const auto size = [&](const char* name, std::int64_t& value, const char* what) {
    command.add_option(name, value, what)->transform(whole_numbers(1, 1 << 24));
  };
  size("--frames", options.frames, "Frames of a video in latent space");
  size("--tokens", options.tokens, "Patches of a frame, or tokens of a document");
  size("--text-tokens", options.text, "Tokens of a caption, if the model has caption_channels");
  size("--sequences", options.sequences, "Sequences of an alignment");
  size("--residues", options.residues, "Residues of a sequence");
  size("--width", options.width, "Hidden width instead of the model's");
  command
      .add_option(
          "--kv-ratio",
          options.kv_ratio,
          "Key/value heads divided by query heads (default: the model's)")
      ->check(numbers(0.001, 1));
}

GridShape shape_of(const GridOptions& options) {
  GridShape shape = read_grid_shape(options.model);
  auto* const video = std::get_if<StditShape>(&shape);
  if (video == nullptr) {
    refuse_other("--frames", options.frames > 0, "evoformer");
    refuse_other("--tokens", options.tokens > 0, "evoformer");
    refuse_other("--text-tokens", options.text > 0, "evoformer");
    refuse_other("--width", options.width > 0, "evoformer");
    refuse_other("--kv-ratio", options.kv_ratio > 0, "evoformer");
    refuse_other("--batch", options.batch > 1, "evoformer");
    return shape;
  }
  refuse_other("--sequences", options.sequences > 0, "stdit");
  refuse_other("--residues", options.residues > 0, "stdit");
  if (options.width > 0) {
    video->mlp_hidden = video->mlp_hidden * options.width / video->hidden;
    video->hidden = options.width;
    if (video->hidden % video->heads != 0) {
      throw std::invalid_argument(fmt::format(
          "--width {} is not a multiple of the model's {} heads", options.width, video->heads));
    }
  }
  if (options.kv_ratio > 0) {
    const double heads = options.kv_ratio * static_cast<double>(video->heads);
    video->kv_heads = std::llround(heads);
    if (video->kv_heads < 1 || std::abs(heads - std::round(heads)) > 1e-9 ||
        video->heads % video->kv_heads != 0) {
      throw std::invalid_argument(fmt::format(
          "--kv-ratio {}: for {} heads this gives {} key/value heads; it must be a whole number "
          "that divides the heads",
          options.kv_ratio,
          video->heads,
          heads));
    }
  }
  return shape;
}

Documents documents_of(const GridOptions& options, const GridShape& shape, int ranks) {
  std::map<std::string, std::int64_t> dims;
  std::int64_t batch = 1;
  std::int64_t rows = 0;
  if (std::holds_alternative<StditShape>(shape)) {
    dims["frames"] = needed("--frames", options.frames, options.model);
    dims["patches"] = needed("--tokens", options.tokens, options.model);
    if (std::get<StditShape>(shape).caption_channels > 0) {
      dims["text"] = needed("--text-tokens", options.text, options.model);
    } else if (options.text > 0) {
      throw std::invalid_argument(fmt::format(
          "--text-tokens: --model {} has no caption_channels, so it does not attend to text",
          options.model));
    }
    batch = options.batch;
    rows = dims["frames"] * dims["patches"];
  } else {
    dims["sequences"] = needed("--sequences", options.sequences, options.model);
    dims["residues"] = needed("--residues", options.residues, options.model);
    dims["i"] = dims["j"] = dims["residues"];
    rows = dims["sequences"] * dims["residues"];
  }
  Documents documents =
      packed(std::vector<std::int64_t>(idx(batch), rows), ranks, /*causal=*/false);
  documents.dims = std::move(dims);
  if (!options.mesh.empty() &&
      (options.mesh.size() != 2 || options.mesh[0] * options.mesh[1] != ranks)) {
    throw std::invalid_argument(fmt::format(
        "--mesh {}: two numbers whose product is --ranks {} are needed",
        fmt::join(options.mesh, ","),
        ranks));
  }
  documents.mesh = options.mesh;
  return documents;
}

ModelFolder model_of(const GridOptions& options) {
  std::error_code unknown;
  const bool is_there = std::filesystem::exists(options.model, unknown);
  if (is_grid_model(options.model) || !is_there) {  // no preset: shape_of() says so
    ModelFolder model{.path = options.model, .shape = {}};
    model.grid = shape_of(options);
    return model;
  }
  ModelFolder model = reading([&] { return open_any_model(options.model); }, "--model");
  refuse_options_of_grids(options);
  model.shape = without_dropout(model.shape);
  expect_positions(options, model.shape, options.tokens);
  return model;
}

Documents documents_of(const GridOptions& options, const ModelFolder& model, int ranks) {
  if (model.grid) {
    return documents_of(options, *model.grid, ranks);
  }
  if (!options.mesh.empty()) {
    throw std::invalid_argument(
        "--mesh: documents have one dim (tokens), which one axis shards; leave --mesh out");
  }
  const std::int64_t tokens = needed("--tokens", options.tokens, options.model);
  return packed(std::vector<std::int64_t>(idx(options.batch), tokens), ranks, model.shape.causal);
}

void refuse_options_of_grids(const GridOptions& options) {
  const std::pair<const char*, bool> given[] = {
      {"--frames", options.frames > 0},
      {"--text-tokens", options.text > 0},
      {"--sequences", options.sequences > 0},
      {"--residues", options.residues > 0},
      {"--width", options.width > 0},
      {"--kv-ratio", options.kv_ratio > 0}};
  for (const auto& [option, is_given] : given) {
    if (is_given) {
      throw std::invalid_argument(fmt::format(
          "{} is for video and protein models; --model {} is a language model, whose documents "
          "have --tokens",
          option,
          options.model));
    }
  }
}

void expect_positions(const GridOptions& options, const ModelShape& shape, std::int64_t tokens) {
  const LengthLimit longest = length_limit(shape);
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

std::string layout_type(const ModelFolder& model) {
  return model.grid ? model_type(*model.grid) : "text";
}

}  // namespace paradyse::cli
