#include "src/run/train/checkpoint_pieces.h"

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/accountant.h"
#include "src/plan/base/json_node.h"
#include "src/plan/base/text_match.h"
#include "src/run/memory/host_store.h"
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

using NamedTensors = std::vector<std::pair<const char*, at::Tensor>>;

// The tensors of a piece, in the order of the file.
NamedTensors tensors_of(const TrainedPiece& one) {
  return {{kMaster, one.master}, {kMean, one.mean}, {kVariance, one.variance}};
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

// Each piece with the tensors that are read of it: without an optimizer the master alone.
std::vector<std::pair<WeightPiece, NamedTensors>> tensors_to_read(
    const Parameters& parameters, const AdamW* optimizer) {
  std::vector<std::pair<WeightPiece, NamedTensors>> all;
  if (optimizer == nullptr) {
    for (const WeightPiece& piece : pieces(parameters)) {
      all.emplace_back(piece, NamedTensors{{kMaster, piece.of(piece.master)}});
    }
    return all;
  }
  for (const TrainedPiece& one : trained_pieces(parameters, *optimizer)) {
    all.emplace_back(one.piece, tensors_of(one));
  }
  return all;
}

}  // namespace

std::vector<TrainedPiece> trained_pieces(const Parameters& parameters, const AdamW& optimizer) {
  const std::vector<WeightPiece> all = pieces(parameters);
  std::vector<TrainedPiece> trained;
  trained.reserve(all.size());
  for (const WeightPiece& piece : all) {
    const auto [mean, variance] = optimizer.moments(piece.master);
    trained.push_back(
        {.piece = piece,
         .master = piece.of(piece.master),
         .mean = piece.of(mean),
         .variance = piece.of(variance)});
  }
  return trained;
}

Snapshot::Snapshot(const Parameters& parameters, const AdamW& optimizer, bool on_host)
    : sources_(trained_pieces(parameters, optimizer)), copies_(sources_) {
  const c10::InferenceMode no_autograd;
  const MemoryScope scope(Category::optimizer, "snapshot of a checkpoint");
  for (at::Tensor TrainedPiece::* const what :
       {&TrainedPiece::master, &TrainedPiece::mean, &TrainedPiece::variance}) {
    std::int64_t elements = 0;
    for (const TrainedPiece& one : sources_) {
      elements += (one.*what).numel();
    }
    if (elements == 0) {
      continue;
    }
    const at::TensorOptions like = (sources_.front().*what).options();
    const bool host = on_host || parameters.device() != c10::Device(c10::kCPU);
    const at::Tensor all =
        host ? host_zeros(elements, like.device(parameters.device()), "a snapshot")
             : at::empty({elements}, like);
    std::int64_t begin = 0;
    for (TrainedPiece& one : copies_) {
      at::Tensor& tensor = one.*what;
      tensor = all.narrow(0, begin, tensor.numel()).view(tensor.sizes());
      begin += tensor.numel();
    }
  }
}

void Snapshot::take() {
  const c10::InferenceMode no_autograd;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    copies_[i].master.copy_(sources_[i].master);
    copies_[i].mean.copy_(sources_[i].mean);
    copies_[i].variance.copy_(sources_[i].variance);
  }
}

void write_pieces(
    const fs::path& file,
    int rank,
    int ranks,
    const std::vector<TrainedPiece>& pieces,
    const std::atomic<bool>* given_up) {
  const c10::InferenceMode no_autograd;
  std::vector<std::pair<std::string, StoredTensor>> tensors;
  std::map<std::string, std::string> metadata = {
      {"format", "paradyse-checkpoint"},
      {"version", std::to_string(CheckpointState::kVersion)},
      {"rank", std::to_string(rank)},
      {"ranks", std::to_string(ranks)}};
  for (const TrainedPiece& one : pieces) {
    const WeightPiece& piece = one.piece;
    const nlohmann::json whole = {
        {"shape", piece.shape},
        {"rows", {piece.rows.begin, piece.rows.end}},
        {"transposed", piece.transposed}};
    metadata.emplace(piece_name("", piece), whole.dump());
    for (const auto& [what, tensor] : tensors_of(one)) {
      tensors.emplace_back(
          piece_name(what, piece),
          StoredTensor{.dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()});
    }
  }
  SafetensorsWriter writer(file, std::move(tensors), metadata);
  for (const TrainedPiece& one : pieces) {
    for (const auto& [what, tensor] : tensors_of(one)) {
      if (given_up != nullptr && given_up->load()) {
        throw std::runtime_error(file.string() + ": is given up: the run has ended");
      }
      writer.write(piece_name(what, one.piece), tensor.cpu());
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
  for (const auto& [piece, tensors] : tensors_to_read(parameters, optimizer)) {
    const auto found = stored.find(piece.name);
    std::int64_t at = piece.rows.begin;
    for (std::size_t i = 0; found != stored.end() && i < found->second.size(); ++i) {
      const auto& [rows, file] = found->second[i];
      if (rows.begin > at || rows.end <= at || at == piece.rows.end) {
        continue;
      }
      const std::int64_t count = std::min(rows.end, piece.rows.end) - at;
      for (const auto& [what, tensor] : tensors) {
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
