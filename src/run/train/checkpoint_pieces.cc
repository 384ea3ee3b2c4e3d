#include "src/run/train/checkpoint_pieces.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/index.h"
#include "src/plan/base/json_node.h"
#include "src/plan/base/text_match.h"
#include "src/run/train/checkpoint_state.h"
#include "src/run/weights/safetensors.h"

namespace paradyse {
namespace fs = std::filesystem;

namespace {

constexpr const char* kMaster = "master:";
constexpr const char* kMean = "exp_avg:";
constexpr const char* kVariance = "exp_avg_sq:";

std::string rows_text(const std::string& name, const Interval& rows) {
  return fmt::format("{}[{}:{}]", name, rows.begin, rows.end);
}

std::string piece_name(const char* what, const WeightPiece& piece) {
  return what + rows_text(piece.name, piece.rows);
}

// The tensors of a piece, in the order of the file; without an optimizer the master alone.
std::vector<std::pair<const char*, at::Tensor>> tensors_of(
    const WeightPiece& piece, const AdamW* optimizer) {
  std::vector<std::pair<const char*, at::Tensor>> tensors = {{kMaster, piece.of(piece.master)}};
  if (optimizer != nullptr) {
    const auto [mean, variance] = optimizer->moments(piece.master);
    tensors.emplace_back(kMean, piece.of(mean));
    tensors.emplace_back(kVariance, piece.of(variance));
  }
  return tensors;
}

// Rows of a weight that a file holds.
struct StoredRows {
  Interval rows;
  std::size_t file = 0;
};

// The rows that a piece says it has.
Interval rows_in(const std::string& text, const fs::path& file, const std::string& piece) {
  const JsonSource source{.name = file.string(), .whole = "the piece " + excerpt(piece)};
  try {
    const nlohmann::json described = parse_json(text, source);
    const auto rows = JsonNode(described, source).at("rows").integers<std::int64_t>();
    if (rows.size() == 2 && rows[0] >= 0 && rows[0] <= rows[1]) {
      return {rows[0], rows[1]};
    }
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error(fmt::format("{}: the checkpoint is damaged", error.what()));
  }
  damaged(file, fmt::format("the piece {} has rows that no weight has", excerpt(piece)));
}

// What the files hold of each weight, by the first row; of equal rows first those of file `own`.
std::map<std::string, std::vector<StoredRows>> stored_rows(
    const std::vector<SafetensorsReader>& files, std::size_t own) {
  std::map<std::string, std::vector<StoredRows>> stored;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::size_t f = (own + i) % files.size();
    for (const auto& [key, text] : files[f].metadata()) {
      const std::size_t bracket = key.rfind('[');
      if (!key.ends_with(']') || bracket == std::string::npos) {
        continue;
      }
      stored[key.substr(0, bracket)].push_back({rows_in(text, files[f].files().front(), key), f});
    }
  }
  for (auto& [name, all] : stored) {
    std::ranges::stable_sort(all, {}, [](const StoredRows& one) { return one.rows.begin; });
  }
  return stored;
}

}  // namespace

void write_pieces(
    const fs::path& file,
    int rank,
    int ranks,
    const Parameters& parameters,
    const AdamW& optimizer) {
  std::vector<std::pair<std::string, StoredTensor>> tensors;
  std::map<std::string, std::string> metadata = {
      {"format", "paradyse-checkpoint"},
      {"version", std::to_string(CheckpointState::kVersion)},
      {"rank", std::to_string(rank)},
      {"ranks", std::to_string(ranks)}};
  const std::vector<WeightPiece> all = pieces(parameters);
  for (const WeightPiece& piece : all) {
    const nlohmann::json whole = {
        {"shape", piece.shape},
        {"rows", {piece.rows.begin, piece.rows.end}},
        {"transposed", piece.transposed}};
    metadata.emplace(piece_name("", piece), whole.dump());
    for (const auto& [what, tensor] : tensors_of(piece, &optimizer)) {
      tensors.emplace_back(
          piece_name(what, piece),
          StoredTensor{.dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()});
    }
  }
  SafetensorsWriter writer(file, std::move(tensors), metadata);
  for (const WeightPiece& piece : all) {
    for (const auto& [what, tensor] : tensors_of(piece, &optimizer)) {
      writer.write(piece_name(what, piece), tensor.cpu());
    }
  }
  writer.finish();
}

void read_pieces(const std::vector<fs::path>& files, Parameters& parameters, AdamW* optimizer) {
  const c10::InferenceMode no_autograd;
  std::vector<SafetensorsReader> readers;
  readers.reserve(files.size());
  for (const fs::path& file : files) {
    readers.emplace_back(file);
  }
  const auto stored = stored_rows(readers, idx(parameters.domain_rank()));
  for (const WeightPiece& piece : pieces(parameters)) {
    const auto found = stored.find(piece.name);
    std::int64_t at = piece.rows.begin;
    for (std::size_t i = 0; found != stored.end() && i < found->second.size(); ++i) {
      const auto& [rows, file] = found->second[i];
      if (rows.begin > at || rows.end <= at || at == piece.rows.end) {
        continue;
      }
      const std::int64_t count = std::min(rows.end, piece.rows.end) - at;
      for (const auto& [what, tensor] : tensors_of(piece, optimizer)) {
        const std::string name = what + rows_text(piece.name, rows);
        const at::Tensor there = readers[file].view(name);
        if (there.dim() != tensor.dim() || there.size(0) != rows.size() ||
            there.sizes().slice(1) != tensor.sizes().slice(1) ||
            there.scalar_type() != tensor.scalar_type()) {
          damaged(files[file], name + " has another shape or type");
        }
        tensor.narrow(0, at - piece.rows.begin, count)
            .copy_(there.narrow(0, at - rows.begin, count));
      }
      at += count;
    }
    if (at != piece.rows.end) {
      damaged(
          files.empty() ? fs::path("no file") : files.front().parent_path(),
          fmt::format("no file has row {} of {}", at, piece.name));
    }
  }
  parameters.round_masters();
}

}  // namespace paradyse
