#include "src/run/train/checkpoint.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paradyse/plan/detail/op_traits.h"
#include "paradyse/run/accountant.h"
#include "src/plan/base/sha256.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/train/background_work.h"
#include "src/run/train/checkpoint_pieces.h"
#include "src/run/train/files.h"
#include "src/run/weights/safetensors.h"
#include "tests/support/folder.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/models.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TextShape gpt2() {
  return test::model_of(R"({"model_type": "gpt2", "n_embd": 12, "n_layer": 1, "n_head": 3,
                            "vocab_size": 32, "n_positions": 16, "attn_pdrop": 0.0})");
}

// What a rank trains, with moments that tell every element, rank and step from every other.
struct Trained {
  Parameters parameters;
  AdamW optimizer;

  Trained(const TextShape& model, int ranks, int rank, Dtype dtype)
      : parameters(
            text_model(model), ranks, rank, parameter_types(dtype), true, Masters::on_device),
        optimizer(parameters, {}) {}

  void fill(std::int64_t step) {
    const c10::InferenceMode no_autograd;
    double next = static_cast<double>(step) + parameters.domain_rank() / 8.0;
    for (const WeightPiece& piece : pieces(parameters)) {
      const auto [mean, variance] = optimizer.moments(piece.master);
      for (const at::Tensor& tensor : {piece.master, mean, variance}) {
        const at::Tensor rows = tensor.narrow(0, piece.here.begin, piece.here.size());
        rows.copy_(at::arange(rows.numel(), rows.options()).view_as(rows).mul_(1e-3).add_(next));
        next += 100;
      }
    }
    optimizer.set_steps(step);
  }
};

CheckpointState state_of(std::int64_t step, int ranks, const TextShape& model) {
  return {
      .step = step,
      .tokens = 7 * step,
      .ranks = ranks,
      .weight_domain = ranks,
      .dtype = Dtype::float32,
      .model_sha256 = fingerprint(model),
      .optimizer_steps = step,
      .loss_scale = 1024,
      .loss_scale_steps = 3,
      .data =
          {.fingerprint = "f", .drawn = "d", .documents = 9, .draws = 20, .epoch = 2, .next = 4},
      .machine = {.matmul_flops_per_second = 0.1 + 0.2, .cores = 3},
      .costs = "c",
      .costs_file = "/runs/costs/it's.json",
      .given_plans = "0123",
      .left_out = {4, 7},
      .learned =
          {.ratios =
               {{{{"attention", "METP"}, 4, 7}, {0.1 + 0.2, 3}},
                {{{"attention", "METP"}, 2, 7}, {5}},
                {{{"rest", ""}, 1, 8}, {}}},
           .machine = 1 / 0.7,
           .caps = {{12, std::int64_t{1} << 40}},
           .speeds = RankSpeeds::Ratios(static_cast<std::size_t>(ranks), {0.1 + 0.2, 3}),
           .slow_since = std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 7)},
      .configuration = {{"train.steps", "9"}, {"data.path", "'it''s'"}}};
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Every test has a run folder of its own.
class Checkpoint : public testing::Test {
 protected:
  [[nodiscard]] fs::path checkpoints() const { return run_ / "checkpoints"; }
  [[nodiscard]] fs::path at(const char* step) const { return checkpoints() / step; }

  // Asynchronously: from a copy, on another thread, while what was copied changes.
  void write_async(std::int64_t step, int ranks = 3, std::int64_t keep = 2) const {
    const TextShape model = gpt2();
    run_local_ranks(ranks, {}, [&](Communicators& communicators) {
      const int rank = communicators.rank();
      Trained trained(model, ranks, rank, Dtype::float32);
      Snapshot snapshot(trained.parameters, trained.optimizer, /*on_host=*/false);
      trained.fill(step);
      snapshot.take();
      CheckpointSave save(
          checkpoints(),
          {.state = [&] { return state_of(step, ranks, model); },
           .pieces =
               [&](const fs::path& file) { write_pieces(file, rank, ranks, snapshot.pieces()); },
           .after = [&] { prune_checkpoints(checkpoints(), keep); }},
          ranks,
          communicators.world());
      while (!save.over()) {
        BackgroundWork work;
        work.start([&] { save.work(); });
        trained.fill(step + 1000);
        work.finish();
        save.agree(communicators.world());
      }
      if (!save.wrong().empty()) {
        throw std::runtime_error(save.wrong());
      }
    });
  }

  void write(std::int64_t step, int ranks = 3, std::int64_t keep = 2) const {
    const TextShape model = gpt2();
    run_local_ranks(ranks, {}, [&](Communicators& communicators) {
      Trained trained(model, ranks, communicators.rank(), Dtype::float32);
      trained.fill(step);
      const std::string why = write_checkpoint(
          checkpoints(),
          {.state = [&] { return state_of(step, ranks, model); }},
          trained.parameters,
          trained.optimizer,
          communicators.world());
      if (!why.empty()) {  // every rank has it
        throw std::runtime_error(why);
      }
      if (communicators.rank() == 0) {
        prune_checkpoints(checkpoints(), keep);
      }
      communicators.world().barrier({.op = "written", .part = ""});
    });
  }

  // Post: the newest is of this step, whole, and holds what write() put there, on every rank.
  void expect_newest(std::int64_t step, int ranks = 3) const {
    const auto newest = complete_checkpoint(checkpoints());
    ASSERT_TRUE(newest);
    const CheckpointState state = open_checkpoint(*newest);
    ASSERT_EQ(state.step, step);
    for (int r = 0; r < ranks; ++r) {
      Trained expected(gpt2(), ranks, r, Dtype::float32);
      expected.fill(step);
      Trained read(gpt2(), ranks, r, Dtype::float32);
      read_checkpoint(*newest, state, read.parameters, read.optimizer);
      EXPECT_EQ(read.optimizer.steps(), step);
      const auto theirs = pieces(expected.parameters);
      const auto mine = pieces(read.parameters);
      ASSERT_EQ(mine.size(), theirs.size());
      for (std::size_t i = 0; i < mine.size(); ++i) {
        const auto [mean, variance] = read.optimizer.moments(mine[i].master);
        const auto [their_mean, their_variance] = expected.optimizer.moments(theirs[i].master);
        EXPECT_TRUE(mine[i].master.equal(theirs[i].master)) << mine[i].name;
        EXPECT_TRUE(mean.equal(their_mean)) << mine[i].name;
        EXPECT_TRUE(variance.equal(their_variance)) << mine[i].name;
      }
    }
  }

  // Why the newest checkpoint is not taken; rank 1 reads.
  [[nodiscard]] std::string refusal() const {
    return test::refusal<std::runtime_error>([&] {
      const fs::path newest = checkpoints_in(checkpoints()).front();
      const CheckpointState state = open_checkpoint(newest);
      expect_whole(newest, state, 1, 3);
      Trained read(gpt2(), 3, 1, Dtype::float32);
      read_checkpoint(newest, state, read.parameters, read.optimizer);
    });
  }

  test::Folder run_;
};

void put(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

TEST_F(Checkpoint, IsReadBackAsItWasWrittenAndTheNewestStay) {
  for (const int ranks : {1, 2, 4}) {
    fs::remove_all(checkpoints());
    for (const std::int64_t step : {5, 50, 1000000, 1000001}) {  // not in the order of letters
      write(step, ranks);
      expect_newest(step, ranks);
    }
    EXPECT_THAT(names_in(checkpoints()), ElementsAre("1000000", "1000001"));
  }
}

TEST_F(Checkpoint, IsOfTheStepThatWasCopied) {
  for (const int ranks : {1, 2, 3, 4}) {
    fs::remove_all(checkpoints());
    for (const std::int64_t step : {5, 50, 51}) {
      write_async(step, ranks);
      expect_newest(step, ranks);
    }
    EXPECT_THAT(names_in(checkpoints()), ElementsAre("000050", "000051"));
  }
}

// Of each 100 steps the first stays, whatever the steps of checkpoints are.
TEST_F(Checkpoint, OneOfEverySoManyStepsStays) {
  for (const char* step : {"000040", "000099", "000130", "000180", "000250", "000320", "000390"}) {
    fs::create_directories(at(step));
    std::ofstream(at(step) / "state.json") << "{}";
    prune_checkpoints(checkpoints(), 2, 100);
  }
  EXPECT_THAT(names_in(checkpoints()), ElementsAre("000130", "000250", "000320", "000390"));
  prune_checkpoints(checkpoints(), 1, 0);
  EXPECT_THAT(names_in(checkpoints()), ElementsAre("000390"));
}

// Nothing is copied in memory, neither way.
TEST_F(Checkpoint, TakesNoMemory) {
  install_accounting_allocator();
  run_local_ranks(2, {}, [&](Communicators& communicators) {
    Accountant memory("rank", 0);
    const MemoryScope scope(memory, Category::parameters, "parameters");
    Trained trained(gpt2(), 2, communicators.rank(), Dtype::bfloat16);
    trained.fill(5);
    memory.reset_peak();
    const std::int64_t before = memory.live_bytes();
    write_checkpoint(
        checkpoints(),
        {.state = [] { return state_of(5, 2, gpt2()); }},
        trained.parameters,
        trained.optimizer,
        communicators.world());
    read_checkpoint(
        at("000005"), open_checkpoint(at("000005")), trained.parameters, trained.optimizer);
    EXPECT_GT(before, 0);
    EXPECT_EQ(memory.peak_bytes(), before);
  });
}

// A snapshot has the bytes that plans count for it (Precision), in what holds the optimizer's
// state.
TEST_F(Checkpoint, SnapshotsTakeTheMemoryThatPlansCount) {
  install_accounting_allocator();
  for (const Dtype dtype : {Dtype::float32, Dtype::float64, Dtype::bfloat16}) {
    run_local_ranks(3, {}, [&](Communicators& communicators) {
      const int rank = communicators.rank();
      Accountant memory("rank", 0);
      const MemoryScope scope(memory, Category::parameters, "parameters");
      Trained trained(gpt2(), 3, rank, dtype);
      const std::int64_t before = memory.live_bytes(Category::optimizer);
      Precision precision = precision_of(dtype);
      const std::int64_t without = precision.of_weight(Keeps::optimizer);
      precision.snapshot = true;
      const std::int64_t counted = (precision.of_weight(Keeps::optimizer) - without) *
                                   stored_elements(text_model(gpt2()), 3, rank);
      EXPECT_GT(counted, 0);
      const std::int64_t all = memory.live_bytes();
      Snapshot snapshot(trained.parameters, trained.optimizer, /*on_host=*/false);
      EXPECT_EQ(memory.live_bytes(Category::optimizer) - before, counted) << to_string(dtype);
      EXPECT_EQ(memory.live_bytes() - all, counted) << to_string(dtype);
      const Snapshot elsewhere(trained.parameters, trained.optimizer, /*on_host=*/true);
      memory.reset_peak();
      snapshot.take();
      EXPECT_EQ(memory.peak_bytes() - all, counted) << to_string(dtype);
      precision.optimizer_on_host = true;
      Precision plain = precision;
      plain.snapshot = false;
      EXPECT_EQ(precision.of_weight(Keeps::optimizer), plain.of_weight(Keeps::optimizer));
    });
  }
}

TEST_F(Checkpoint, StateIsReadBackToTheLastBit) {
  CheckpointState state = state_of(50, 4, gpt2());
  state.files = {{.name = "rank-00000.safetensors", .bytes = 5, .xxh64 = "00"}};
  const CheckpointState again = checkpoint_state(to_json(state), "here");
  EXPECT_EQ(to_json(again), to_json(state));
  EXPECT_EQ(again.machine.matmul_flops_per_second, 0.1 + 0.2);
  EXPECT_EQ(again.data, state.data);
  EXPECT_EQ(again.costs, "c");
  EXPECT_EQ(again.given_plans, "0123");
  EXPECT_EQ(again.costs_file, state.costs_file);
  EXPECT_EQ(again.left_out, state.left_out);
  EXPECT_EQ(again.learned, state.learned);
  EXPECT_EQ(again.configuration, state.configuration);
}

TEST_F(Checkpoint, StateOfBeforeGetsTheNamesOfNow) {
  CheckpointState state = state_of(50, 4, gpt2());
  state.configuration.emplace("optimizer.clip_norm", "0.5");
  state.configuration.emplace("parallel.batch_planner", "'flexsp'");
  const CheckpointState again = checkpoint_state(to_json(state), "here");
  EXPECT_EQ(again.configuration.at("optimizer.max_grad_norm"), "0.5");
  EXPECT_FALSE(again.configuration.contains("optimizer.clip_norm"));
  EXPECT_EQ(again.configuration.at("parallel.batch_planner"), "'groups'");
}

// Checkpoints of before parts were told apart: their ratios, of whole groups, are nobody's, and
// they know no machine apart from strategies.
TEST_F(Checkpoint, StateOfBeforeSaysNothingOfParts) {
  CheckpointState state = state_of(50, 4, gpt2());
  state.learned.machine = 1;
  nlohmann::json old = nlohmann::json::parse(to_json(state));
  for (nlohmann::json& ratios : old["learned"]["ratios"]) {
    ratios.erase("part");
  }
  old["learned"].erase("machine");
  old.erase("sha256");
  old["sha256"] = sha256_hex(old.dump());
  state.learned.ratios.clear();
  EXPECT_EQ(checkpoint_state(old.dump(), "here").learned, state.learned);
}

// What a model trains, whole: each weight, mean and variance drawn by its name, so that a rank's
// piece is right or wrong whoever wrote it.
double number_of(const std::string& name, std::int64_t row, int what) {
  return static_cast<double>(std::hash<std::string>{}(name) % 1009) + 7.0 * what +
         static_cast<double>(row) / 1024;
}

template <typename Visit>
void each_tensor(const Parameters& parameters, const AdamW& optimizer, const Visit& visit) {
  for (const WeightPiece& piece : pieces(parameters)) {
    const auto [mean, variance] = optimizer.moments(piece.master);
    int what = 0;
    for (const at::Tensor& tensor : {piece.master, mean, variance}) {
      const at::Tensor rows = piece.of(tensor);
      const at::Tensor numbers = at::empty({rows.size(0)}, at::kDouble);
      for (std::int64_t r = 0; r < rows.size(0); ++r) {
        numbers.mutable_data_ptr<double>()[r] = number_of(piece.name, piece.rows.begin + r, what);
      }
      ++what;
      visit(
          piece.name,
          rows,
          numbers.to(rows.scalar_type())
              .view(
                  rows.dim() == 1 ? std::vector<std::int64_t>{-1}
                                  : std::vector<std::int64_t>{-1, 1})
              .expand_as(rows));
    }
  }
}

// Post: what `from` ranks write, `to` ranks read: every row of every weight and moment.
void expect_cut_anew(const Model& model, int from, int to, bool offload, const fs::path& folder) {
  const c10::InferenceMode no_autograd;
  const RunConfig::Optimizer options{.offload = offload};
  run_local_ranks(from, {}, [&](Communicators& communicators) {
    const c10::InferenceMode none;
    Parameters parameters(
        model,
        from,
        communicators.rank(),
        parameter_types(Dtype::float32),
        true,
        Masters::on_device);
    AdamW optimizer(parameters, options);
    each_tensor(
        parameters,
        optimizer,
        [](const std::string&, const at::Tensor& rows, const at::Tensor& numbers) {
          rows.copy_(numbers);
        });
    CheckpointState state = state_of(3, from, gpt2());
    EXPECT_EQ(
        write_checkpoint(
            folder, {.state = [&] { return state; }}, parameters, optimizer, communicators.world()),
        "");
  });
  const fs::path checkpoint = folder / "000003";
  const CheckpointState state = open_checkpoint(checkpoint);
  for (int r = 0; r < to; ++r) {
    Parameters parameters(model, to, r, parameter_types(Dtype::float32), true, Masters::on_device);
    AdamW optimizer(parameters, options);
    read_checkpoint(checkpoint, state, parameters, optimizer);
    each_tensor(
        parameters,
        optimizer,
        [&](const std::string& name, const at::Tensor& rows, const at::Tensor& numbers) {
          EXPECT_TRUE(rows.equal(numbers)) << name << " " << from << " -> " << to << " rank " << r;
        });
  }
  fs::remove_all(folder);
}

// 1, 2, 3, 4, 6 and 8 ranks write and read one another's: a few pairs of each model, and in the
// long tests all.
TEST_F(Checkpoint, IsCutAnewForAnyOtherNumberOfRanks) {
  const auto text = [](const char* tied, int vocab) {
    return Model(text_model(test::model_of(fmt::format(
        R"({{"model_type": "gpt2", "n_embd": 12, "n_layer": 1, "n_head": 3, "vocab_size": {},
             "n_positions": 16, "attn_pdrop": 0.0, "tie_word_embeddings": {}}})",
        vocab,
        tied))));
  };
  const std::map<std::string, Model> models = {
      {"tied 257", text("true", 257)},
      {"untied 257", text("false", 257)},
      {"tied 50257", text("true", 50257)},
      {"untied 50257", text("false", 50257)},
      {"video", Model(test::small_stdit(2))},
      {"video of OpenSora", Model(test::small_stdit3(1))},
      {"protein", Model(test::small_evoformer(1))},
      {"protein with extra blocks", Model(test::with_extra_blocks(test::small_evoformer(1), 1))}};
  const std::vector<int> sizes = {1, 2, 3, 4, 6, 8};
  const auto seed = std::random_device()();
  std::mt19937_64 random(seed);
  for (const auto& [name, model] : models) {
    SCOPED_TRACE(fmt::format("{}, seed {}", name, seed));
    std::vector<std::pair<int, int>> pairs;
    for (const int from : sizes) {
      for (const int to : sizes) {
        pairs.emplace_back(from, to);
      }
    }
    if (std::getenv("PARADYSE_TEST_LONG") == nullptr) {
      std::ranges::shuffle(pairs, random);
      pairs.resize(4);
    }
    for (const auto& [from, to] : pairs) {
      expect_cut_anew(model, from, to, /*offload=*/(from + to) % 2 == 0, checkpoints());
    }
  }
}

// The pieces of all files put together by their metadata alone are the whole tensors, as another
// number of ranks would want them.
TEST_F(Checkpoint, FilesSayEnoughToCutThemAnew) {
  write(7);
  std::map<std::string, at::Tensor> wholes;
  std::map<std::string, at::Tensor> counts;
  for (int r = 0; r < 3; ++r) {
    const fs::path file = at("000007") / ("rank-0000" + std::to_string(r) + ".safetensors");
    const SafetensorsReader reader(file);
    for (const auto& [piece, text] : reader.metadata()) {
      if (!piece.ends_with(']')) {
        continue;
      }
      const auto json = nlohmann::json::parse(text);
      const std::string name = piece.substr(0, piece.find('['));
      const auto shape = json["shape"].get<std::vector<std::int64_t>>();
      const std::int64_t begin = json["rows"][0];
      const std::int64_t end = json["rows"][1];
      const auto rows = [&](const at::Tensor& whole) {
        return (json["transposed"].get<bool>() ? whole.t() : whole).narrow(0, begin, end - begin);
      };
      auto& whole = wholes.try_emplace(name, at::zeros(shape)).first->second;
      auto& count = counts.try_emplace(name, at::zeros(shape)).first->second;
      rows(whole).copy_(reader.view("exp_avg_sq:" + piece));
      rows(count).add_(shape.size() == 1 ? 1.0 / 3 : 1.0);  // vectors are in every file
    }
  }
  const auto shapes = parameter_shapes(text_model(gpt2()));
  EXPECT_EQ(wholes.size(), shapes.size());
  for (const auto& [name, shape] : shapes) {
    ASSERT_TRUE(wholes.contains(name)) << name;
    EXPECT_EQ(wholes[name].sizes().vec(), shape) << name;
    EXPECT_TRUE(counts[name].allclose(at::ones(shape))) << name;  // every element once
  }
}

TEST_F(Checkpoint, DamageOfEveryKindIsNamed) {
  write(3);
  write(5);
  const fs::path state = at("000005") / "state.json";
  const fs::path rank = at("000005") / "rank-00001.safetensors";
  const std::string whole_state = file_text(state);
  const std::string whole_rank = file_text(rank);
  ASSERT_EQ(refusal(), "");

  std::mt19937_64 random(1);
  for (int i = 0; i < 60; ++i) {  // one bit, anywhere
    const bool in_state = i % 2 == 0;
    std::string text = in_state ? whole_state : whole_rank;
    const std::size_t byte = random() % text.size();
    text[byte] = static_cast<char>(text[byte] ^ (1 << (random() % 8)));
    put(in_state ? state : rank, text);
    const std::string why = refusal();
    // what JSON does not mean (a space turned into another) is no damage
    if (!in_state ||
        nlohmann::json::parse(text, nullptr, false) != nlohmann::json::parse(whole_state)) {
      EXPECT_THAT(why, HasSubstr(in_state ? "state.json" : "rank-00001")) << i << " " << byte;
    }
    put(state, whole_state);
    put(rank, whole_rank);
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, whole_rank.size() - 1}) {
    put(rank, whole_rank.substr(0, size));
    EXPECT_THAT(refusal(), AllOf(HasSubstr("rank-00001"), HasSubstr("was written with")));
  }
  put(rank, whole_rank + "x");
  EXPECT_THAT(refusal(), HasSubstr("was written with"));
  fs::remove(rank);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("rank-00001"), HasSubstr("cannot be opened")));
  put(rank, file_text(at("000005") / "rank-00002.safetensors"));  // another rank's
  EXPECT_NE(refusal(), "");
  put(rank, whole_rank);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, whole_state.size() - 3}) {
    put(state, whole_state.substr(0, size));
    EXPECT_THAT(refusal(), AllOf(HasSubstr("state.json"), HasSubstr("damaged")));
  }
  fs::remove(state);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("state.json"), HasSubstr("is not there")));
  put(state, file_text(at("000003") / "state.json"));
  EXPECT_THAT(refusal(), HasSubstr("is the state of step 3"));
  auto later = nlohmann::json::parse(whole_state);
  later["version"] = 2;
  put(state, later.dump());
  EXPECT_THAT(refusal(), AllOf(HasSubstr("version 2"), HasSubstr("newer")));
  put(state, whole_state);
  EXPECT_EQ(refusal(), "");
  // what the message says to do
  fs::rename(at("000005"), run_ / "damaged");
  expect_newest(3);
}

TEST_F(Checkpoint, WithoutRoomTheOneBeforeStaysWhole) {
  write(3);
  const rlim_t some = 2000;  // bytes of a file
  ASSERT_GT(fs::file_size(at("000003") / "rank-00001.safetensors"), some);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit tight{.rlim_cur = some, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &tight);
  const std::string why = test::refusal<std::runtime_error>([&] { write(5); });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(
      why,
      AllOf(HasSubstr("rank-0000"), HasSubstr("cannot be written"), HasSubstr("File too large")));
  EXPECT_EQ(complete_text(checkpoints()), at("000003").string() + " is complete");
  expect_newest(3);
  EXPECT_THAT(names_in(checkpoints()), ElementsAre("000003"));
  write(5);
  expect_newest(5);
}

TEST_F(Checkpoint, WithoutAFolderToWriteToSaysSo) {
  put(checkpoints(), "a file");
  EXPECT_THAT(
      test::refusal<std::runtime_error>([&] { write(5); }), HasSubstr(checkpoints().string()));
  EXPECT_EQ(complete_text(checkpoints()), "there is no complete checkpoint");
}

// Only what this program leaves behind is swept; no other name is taken for a checkpoint.
TEST_F(Checkpoint, LeavesStrangersAlone) {
  write(3);
  for (const char* name :
       {"000009.0a0b0c0d.partial",
        "000001.removed",
        "best",
        "000003-mine",
        "notes.partial",
        "-5"}) {
    fs::create_directory(checkpoints() / name);
  }
  EXPECT_THAT(checkpoints_in(checkpoints()), ElementsAre(at("000003")));
  sweep_checkpoints(checkpoints());
  EXPECT_THAT(
      names_in(checkpoints()), ElementsAre("-5", "000003", "000003-mine", "best", "notes.partial"));
}

// One that was not removed to its end is tried again with the next.
TEST_F(Checkpoint, PruningGoesOnWhereItStopped) {
  write(3, 2);
  fs::create_directory(checkpoints() / "000001.removed");
  fs::create_directory(checkpoints() / "000009.0a0b0c0d.partial");  // of who writes it now
  prune_checkpoints(checkpoints(), 2, 0);
  EXPECT_THAT(names_in(checkpoints()), ElementsAre("000003", "000009.0a0b0c0d.partial"));
}

// Written, pruned and killed at any moment: what is there is the newest that was or one later,
// whole.
TEST_F(Checkpoint, SurvivesKillsAtAnyMoment) {
  const auto seed = std::random_device()();
  std::mt19937_64 random(seed);
  std::int64_t step = 1;  // also where the machine is so busy that no other is finished in time
  write(step, 2);
  int partial = 0;
  for (int i = 0; i < (std::getenv("PARADYSE_TEST_LONG") != nullptr ? 1000 : 50); ++i) {
    int progress[2];
    ASSERT_EQ(pipe(progress), 0);
    const pid_t writer = fork();
    if (writer == 0) {
      for (std::int64_t s = step + 1;; ++s) {
        if (s % 2 == 0) {
          write(s, 2);
        } else {
          write_async(s, 2);
        }
        if (::write(progress[1], &s, sizeof(s)) != sizeof(s)) {
          _exit(1);
        }
      }
    }
    ::close(progress[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(5000 + random() % 20000));
    kill(writer, SIGKILL);
    waitpid(writer, nullptr, 0);
    std::int64_t written = step;
    for (std::int64_t s = 0; ::read(progress[0], &s, sizeof(s)) == sizeof(s);) {
      written = s;
    }
    ::close(progress[0]);
    const auto newest = complete_checkpoint(checkpoints());
    ASSERT_TRUE(newest) << "seed " << seed;
    const auto names = names_in(checkpoints());
    partial += std::any_of(names.begin(), names.end(), [](const std::string& name) {
      return name.ends_with(".partial");
    });
    step = open_checkpoint(*newest).step;
    ASSERT_GE(step, written) << "seed " << seed;
    ASSERT_LE(step, written + 1) << "seed " << seed;
    expect_newest(step, 2);
    sweep_checkpoints(checkpoints());
  }
  write(step + 1, 2);  // and whatever kills left is gone
  EXPECT_EQ(names_in(checkpoints()).size(), 2U) << "seed " << seed;
  EXPECT_GT(partial, 0) << "no kill came in the middle, seed " << seed;
}

}  // namespace
}  // namespace paradyse
