#include "src/run/train/checkpoint.h"

#include <algorithm>
#include <array>
#include <random>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/index.h"
#include "paradyse/run/accountant.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/sha256.h"
#include "src/run/execute/gather.h"
#include "src/run/train/files.h"
#include "src/run/weights/safetensors.h"

namespace paradyse {
namespace fs = std::filesystem;

namespace {

using nlohmann::json;

constexpr const char* kFormat = "paradyse-checkpoint";
constexpr const char* kState = "state.json";
constexpr const char* kPartial = ".partial";
constexpr const char* kRemoved = ".removed";

// What to do where a checkpoint is not as it was written.
[[noreturn]] void damaged(const fs::path& file, const std::string& what) {
  throw std::runtime_error(fmt::format(
      "{}: {}: the checkpoint is damaged; restore the file, or move its folder out of {} to "
      "continue from the previous checkpoint",
      file.string(),
      what,
      file.parent_path().parent_path().string()));
}

std::string rank_file(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

std::string piece_name(const char* what, const WeightPiece& piece) {
  return fmt::format("{}{}[{}:{}]", what, piece.name, piece.rows.begin, piece.rows.end);
}

// The tensors of a piece, in the order of the file.
std::array<std::pair<const char*, at::Tensor>, 3> tensors_of(
    const WeightPiece& piece, const AdamW& optimizer) {
  const auto [mean, variance] = optimizer.moments(piece.master);
  const auto here = [&](const at::Tensor& tensor) { return piece.of(tensor); };
  return {{
      {"master:", here(piece.master)},
      {"exp_avg:", here(mean)},
      {"exp_avg_sq:", here(variance)},
  }};
}

void write_rank(
    const fs::path& file,
    int rank,
    int ranks,
    const Parameters& parameters,
    const AdamW& optimizer) {
  std::vector<std::pair<std::string, StoredTensor>> tensors;
  std::map<std::string, std::string> metadata = {
      {"format", kFormat},
      {"version", std::to_string(CheckpointState::kVersion)},
      {"rank", std::to_string(rank)},
      {"ranks", std::to_string(ranks)}};
  const std::vector<WeightPiece> all = pieces(parameters);
  for (const WeightPiece& piece : all) {
    const json whole = {
        {"shape", piece.shape},
        {"rows", {piece.rows.begin, piece.rows.end}},
        {"transposed", piece.transposed}};
    metadata.emplace(piece_name("", piece), whole.dump());
    for (const auto& [what, tensor] : tensors_of(piece, optimizer)) {
      tensors.emplace_back(
          piece_name(what, piece),
          StoredTensor{.dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()});
    }
  }
  SafetensorsWriter writer(file, std::move(tensors), metadata);
  for (const WeightPiece& piece : all) {
    for (const auto& [what, tensor] : tensors_of(piece, optimizer)) {
      writer.write(piece_name(what, piece), tensor.cpu());
    }
  }
  writer.finish();
}

// The step of a checkpoint's folder; none for a folder of another name.
std::optional<std::int64_t> step_of(const std::string& name) {
  const bool digits = !name.empty() && name.size() <= 18 &&
                      name.find_first_not_of("0123456789") == std::string::npos;
  return digits ? std::optional(std::stoll(name)) : std::nullopt;
}

// All there are, oldest first.
std::map<std::int64_t, fs::path> checkpoints_in(const fs::path& folder) {
  std::map<std::int64_t, fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (const auto step = step_of(entry.path().filename().string())) {
      found.emplace(*step, entry.path());
    }
  }
  return found;
}

// Under another name first: what is left when this is cut short is taken for nothing.
void remove_checkpoint(const fs::path& checkpoint) {
  fs::path removed = checkpoint;
  removed += kRemoved;
  fs::rename(checkpoint, removed);
  fs::remove_all(removed);
}

// Runs `body`; what goes wrong gets said with what still stands.
template <typename Body>
void saving(const fs::path& checkpoints, std::int64_t step, const Body& body) {
  try {
    body();
  } catch (const std::runtime_error& error) {  // a filesystem_error is one
    const auto before = newest_checkpoint(checkpoints);
    throw std::runtime_error(fmt::format(
        "the checkpoint of step {} could not be written: {}. {}; free disk space or repair the "
        "folder, then run paradyse train --resume {} (checkpoint.keep = 0 turns checkpoints off)",
        step,
        error.what(),
        before ? "The previous one is complete: " + before->string() : "There is no earlier one",
        checkpoints.parent_path().string()));
  }
}

}  // namespace

namespace {

json json_of(const BatchPlanner::Learned& learned) {
  json ratios = json::array();
  for (const auto& [of, its] : learned.ratios) {
    ratios.push_back(
        {{"strategy", of.strategy},
         {"ranks", of.ranks},
         {"log2_length", of.log2_length},
         {"ratios", its}});
  }
  json caps = json::array();
  for (const auto& [of, bytes] : learned.caps) {
    caps.push_back({{"log2_tokens", of}, {"bytes", bytes}});
  }
  return {
      {"ratios", ratios},
      {"machine", learned.machine},
      {"caps", caps},
      {"speeds", learned.speeds}};
}

// Older ones do not say of which groups: there were those of all ranks, and single ranks for what
// runs on one alone.
int ranks_of(const json& ratios, int all) {
  if (ratios.contains("ranks")) {
    return ratios.at("ranks");
  }
  const auto name = ratios.at("strategy").get<std::string>();
  const std::span<const Strategy> known = strategies("attention");
  const auto found = std::ranges::find(known, name, &Strategy::name);
  return found != known.end() && found->one_rank ? 1 : all;
}

BatchPlanner::Learned learned_from(const json& from, int ranks) {
  BatchPlanner::Learned learned;
  for (const auto& of : from.at("ratios")) {
    const Correction::Key key{of.at("strategy"), ranks_of(of, ranks), of.at("log2_length")};
    learned.ratios[key] = of.at("ratios").get<std::deque<double>>();
  }
  learned.machine = from.value("machine", 1.0);  // older ones know none
  for (const auto& of : from.at("caps")) {
    learned.caps[of.at("log2_tokens")] = of.at("bytes");
  }
  if (from.contains("speeds") && std::ssize(from.at("speeds")) == ranks) {
    learned.speeds = from.at("speeds").get<RankSpeeds::Ratios>();
  }
  return learned;
}

}  // namespace

std::string to_json(const CheckpointState& s) {
  json files = json::array();
  for (const CheckpointState::File& file : s.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh64", file.xxh64}});
  }
  json state = {
      {"format", kFormat},
      {"version", CheckpointState::kVersion},
      {"step", s.step},
      {"tokens", s.tokens},
      {"ranks", s.ranks},
      {"weight_domain", s.weight_domain},
      {"dtype", to_string(s.dtype)},
      {"model_sha256", s.model_sha256},
      {"optimizer", {{"name", "AdamW"}, {"steps", s.optimizer_steps}}},
      {"loss_scale", {{"value", s.loss_scale}, {"steps", s.loss_scale_steps}}},
      {"data",
       {{"fingerprint", s.data.fingerprint},
        {"drawn", s.data.drawn},
        {"documents", s.data.documents},
        {"draws", s.data.draws},
        {"epoch", s.data.epoch},
        {"next", s.data.next}}},
      {"machine",
       {{"matmul_flops_per_second", s.machine.matmul_flops_per_second},
        {"attention_flops_per_second", s.machine.attention_flops_per_second},
        {"touched_bytes_per_second", s.machine.touched_bytes_per_second},
        {"sent_bytes_per_second", s.machine.sent_bytes_per_second},
        {"collective_seconds", s.machine.collective_seconds},
        {"call_seconds", s.machine.call_seconds},
        {"cores", s.machine.cores}}},
      {"costs", s.costs},
      {"learned", json_of(s.learned)},
      {"configuration", s.configuration},
      {"files", files}};
  state["sha256"] = sha256_hex(state.dump());  // of all the rest
  return state.dump(2) + "\n";
}

CheckpointState checkpoint_state(const std::string& text, const std::string& from) {
  try {
    json state = json_in(text);
    if (!state.is_object() || state.value("format", "") != kFormat) {
      damaged(from, "is not the state of a checkpoint");
    }
    if (const auto version = state.at("version").get<std::int64_t>();
        version != CheckpointState::kVersion) {
      throw std::runtime_error(fmt::format(
          "{}: has format version {}, but this program reads {}; resume with the program that "
          "wrote it, or a newer one",
          from,
          version,
          CheckpointState::kVersion));
    }
    const auto digest = state.at("sha256").get<std::string>();
    state.erase("sha256");
    if (sha256_hex(state.dump()) != digest) {
      damaged(from, "does not have the content that it was written with");
    }
    const json& data = state.at("data");
    const json& machine = state.at("machine");
    CheckpointState s{
        .step = state.at("step"),
        .tokens = state.at("tokens"),
        .ranks = state.at("ranks"),
        .weight_domain = state.at("weight_domain"),
        .dtype = dtype_named(state.at("dtype").get<std::string>()),
        .model_sha256 = state.at("model_sha256"),
        .optimizer_steps = state.at("optimizer").at("steps"),
        .loss_scale = state.at("loss_scale").at("value"),
        .loss_scale_steps = state.at("loss_scale").at("steps"),
        .data =
            {.fingerprint = data.at("fingerprint"),
             .drawn = data.at("drawn"),
             .documents = data.at("documents"),
             .draws = data.at("draws"),
             .epoch = data.at("epoch"),
             .next = data.at("next")},
        .machine =
            {.matmul_flops_per_second = machine.at("matmul_flops_per_second"),
             .attention_flops_per_second = machine.at("attention_flops_per_second"),
             .touched_bytes_per_second = machine.at("touched_bytes_per_second"),
             .sent_bytes_per_second = machine.at("sent_bytes_per_second"),
             .collective_seconds = machine.at("collective_seconds"),
             .call_seconds = machine.at("call_seconds"),
             .cores = machine.at("cores")},
        .costs = {},
        .learned = {},
        .configuration = with_current_names(state.at("configuration"))};
    if (state.contains("learned")) {  // older ones have none
      s.costs = state.at("costs");
      s.learned = learned_from(state.at("learned"), static_cast<int>(s.ranks));
    }
    for (const json& file : state.at("files")) {
      s.files.push_back(
          {.name = file.at("name"), .bytes = file.at("bytes"), .xxh64 = file.at("xxh64")});
    }
    return s;
  } catch (const json::exception& error) {
    damaged(from, std::string("cannot be read: ") + error.what());
  }
}

std::optional<fs::path> newest_checkpoint(const fs::path& checkpoints) {
  const auto all = checkpoints_in(checkpoints);
  return all.empty() ? std::nullopt : std::optional(all.rbegin()->second);
}

CheckpointState open_checkpoint(const fs::path& checkpoint) {
  std::error_code error;
  const fs::path file = checkpoint / kState;
  if (!fs::is_regular_file(file, error)) {
    damaged(file, "is not there");
  }
  CheckpointState state = checkpoint_state(file_text(file), file.string());
  if (state.step != step_of(checkpoint.filename().string())) {
    damaged(file, fmt::format("is the state of step {}", state.step));
  }
  for (const CheckpointState::File& each : state.files) {
    const fs::path path = checkpoint / each.name;
    const auto bytes = fs::file_size(path, error);
    if (error) {
      damaged(path, "cannot be opened: " + error.message());
    }
    if (!std::cmp_equal(bytes, each.bytes)) {
      damaged(path, fmt::format("has {} bytes, but was written with {}", bytes, each.bytes));
    }
  }
  return state;
}

void write_checkpoint(
    const fs::path& checkpoints,
    const CheckpointState& state,
    const Parameters& parameters,
    const AdamW& optimizer,
    Communicator& world,
    std::int64_t keep) {
  const c10::InferenceMode no_autograd;
  const bool first = world.rank() == 0;
  // Every attempt has a folder of its own: a rank that outlived its run writes into none of ours.
  std::int64_t draw = 0;
  std::int64_t step = state.step;
  const auto partial = [&] {
    return checkpoints / fmt::format("{:06}.{:08x}{}", step, draw, kPartial);
  };
  if (first) {
    saving(checkpoints, step, [&] {
      draw = std::random_device()();
      if (fs::create_directories(checkpoints)) {
        sync_path(checkpoints.parent_path());
      }
      if (!fs::create_directory(partial())) {
        throw std::runtime_error(partial().string() + " is there already");
      }
    });
  }
  const auto of_first = gather({step, draw}, world).front();
  step = of_first[0];
  draw = of_first[1];
  const fs::path folder = partial();
  std::int64_t bytes = 0;
  std::uint64_t check = 0;
  saving(checkpoints, step, [&] {
    if (world.rank() >= parameters.domain()) {
      return;  // it has what the first sharding group has
    }
    const fs::path file = folder / rank_file(world.rank());
    write_rank(file, world.rank(), world.size(), parameters, optimizer);
    bytes = static_cast<std::int64_t>(fs::file_size(file));
    check = std::stoull(file_xxh64(file), nullptr, 16);
  });
  const auto files = gather({bytes, static_cast<std::int64_t>(check)}, world);
  if (first) {
    saving(checkpoints, step, [&] {
      CheckpointState whole = state;
      for (int r = 0; r < parameters.domain(); ++r) {
        const auto& of_rank = files[idx(r)];
        whole.files.push_back(
            {.name = rank_file(r),
             .bytes = of_rank[0],
             .xxh64 = fmt::format("{:016x}", static_cast<std::uint64_t>(of_rank[1]))});
      }
      write_durably(folder / kState, to_json(whole));
      fs::rename(folder, checkpoints / fmt::format("{:06}", step));
      sync_path(checkpoints);
      auto all = checkpoints_in(checkpoints);
      while (keep > 0 && std::cmp_greater(all.size(), keep)) {
        remove_checkpoint(all.begin()->second);
        all.erase(all.begin());
      }
    });
  }
  world.barrier({.op = "checkpoint written", .part = ""});
}

void read_checkpoint(
    const fs::path& checkpoint,
    const CheckpointState& state,
    Parameters& parameters,
    AdamW& optimizer) {
  const c10::InferenceMode no_autograd;
  const auto& file = state.files.at(idx(parameters.domain_rank()));
  const fs::path path = checkpoint / file.name;
  if (const std::string check = file_xxh64(path); check != file.xxh64) {
    damaged(path, fmt::format("has XXH64 {}, but was written with {}", check, file.xxh64));
  }
  const SafetensorsReader reader(path);
  std::size_t taken = 0;
  for (const WeightPiece& piece : pieces(parameters)) {
    for (const auto& [what, tensor] : tensors_of(piece, optimizer)) {
      const std::string name = piece_name(what, piece);
      const at::Tensor stored = reader.view(name);
      if (stored.sizes() != tensor.sizes() || stored.scalar_type() != tensor.scalar_type()) {
        damaged(path, name + " has another shape or type");
      }
      at::Tensor(tensor).copy_(stored);
      ++taken;
    }
  }
  if (taken != reader.tensors().size()) {
    damaged(
        path, fmt::format("has {} tensors, but {} are expected", reader.tensors().size(), taken));
  }
  optimizer.set_steps(state.optimizer_steps);
  parameters.round_masters();
}

void sweep_checkpoints(const fs::path& checkpoints) {
  std::error_code error;
  std::vector<fs::path> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoints, error)) {
    const std::string name = entry.path().filename().string();
    const bool ours = step_of(name.substr(0, name.find('.'))).has_value();
    if (ours && (name.ends_with(kPartial) || name.ends_with(kRemoved))) {
      left.push_back(entry.path());
    }
  }
  for (const fs::path& folder : left) {
    fs::remove_all(folder, error);
  }
}

}  // namespace paradyse
