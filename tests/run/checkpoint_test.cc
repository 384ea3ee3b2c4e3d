#include "src/run/train/checkpoint.h"

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paradyse/run/accountant.h"
#include "src/plan/base/sha256.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/train/files.h"
#include "src/run/weights/safetensors.h"
#include "tests/support/folder.h"
#include "tests/support/models.h"

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
      : parameters(text_model(model), ranks, rank, parameter_types(dtype), true, Masters::on_device),
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
      .learned =
          {.ratios =
               {{{"METP", 4, 7}, {0.1 + 0.2, 3}}, {{"METP", 2, 7}, {5}}, {{"DataZ", 1, 8}, {}}},
           .machine = 1 / 0.7,
           .caps = {{12, std::int64_t{1} << 40}},
           .speeds = RankSpeeds::Ratios(static_cast<std::size_t>(ranks), {0.1 + 0.2, 3})},
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

  void write(std::int64_t step, int ranks = 3, std::int64_t keep = 2) const {
    const TextShape model = gpt2();
    run_local_ranks(ranks, {}, [&](Communicators& communicators) {
      Trained trained(model, ranks, communicators.rank(), Dtype::float32);
      trained.fill(step);
      write_checkpoint(
          checkpoints(),
          state_of(step, ranks, model),
          trained.parameters,
          trained.optimizer,
          communicators.world(),
          keep);
    });
  }

  // Post: the newest is of this step, whole, and holds what write() put there, on every rank.
  void expect_newest(std::int64_t step, int ranks = 3) const {
    const auto newest = newest_checkpoint(checkpoints());
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
    try {
      const fs::path newest = newest_checkpoint(checkpoints()).value();
      const CheckpointState state = open_checkpoint(newest);
      Trained read(gpt2(), 3, 1, Dtype::float32);
      read_checkpoint(newest, state, read.parameters, read.optimizer);
      return "";
    } catch (const std::runtime_error& error) {
      return error.what();
    }
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
        state_of(5, 2, gpt2()),
        trained.parameters,
        trained.optimizer,
        communicators.world(),
        2);
    read_checkpoint(
        at("000005"), open_checkpoint(at("000005")), trained.parameters, trained.optimizer);
    EXPECT_GT(before, 0);
    EXPECT_EQ(memory.peak_bytes(), before);
  });
}

TEST_F(Checkpoint, StateIsReadBackToTheLastBit) {
  CheckpointState state = state_of(50, 4, gpt2());
  state.files = {{.name = "rank-00000.safetensors", .bytes = 5, .xxh64 = "00"}};
  const CheckpointState again = checkpoint_state(to_json(state), "here");
  EXPECT_EQ(to_json(again), to_json(state));
  EXPECT_EQ(again.machine.matmul_flops_per_second, 0.1 + 0.2);
  EXPECT_EQ(again.data, state.data);
  EXPECT_EQ(again.costs, "c");
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

// Checkpoints of before groups could have any size: ratios were those of all ranks together, or of
// single ones for what runs on one alone; and of no machine apart from strategies.
TEST_F(Checkpoint, StateOfBeforeSaysNoSizesOfGroups) {
  CheckpointState state = state_of(50, 4, gpt2());
  state.learned.ratios.erase({"METP", 2, 7});
  state.learned.machine = 1;
  nlohmann::json old = nlohmann::json::parse(to_json(state));
  for (nlohmann::json& ratios : old["learned"]["ratios"]) {
    ratios.erase("ranks");
  }
  old["learned"].erase("machine");
  old.erase("sha256");
  old["sha256"] = sha256_hex(old.dump());
  EXPECT_EQ(checkpoint_state(old.dump(), "here").learned, state.learned);
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
  std::string why;
  try {
    write(5);
  } catch (const std::runtime_error& error) {
    why = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(
      why,
      AllOf(
          HasSubstr("checkpoint of step 5"),
          HasSubstr("rank-0000"),
          HasSubstr("File too large"),
          HasSubstr("000003"),
          HasSubstr("--resume " + run_.string())));
  expect_newest(3);
  sweep_checkpoints(checkpoints());
  EXPECT_THAT(names_in(checkpoints()), ElementsAre("000003"));
  write(5);
  expect_newest(5);
}

TEST_F(Checkpoint, WithoutAFolderToWriteToSaysSo) {
  put(checkpoints(), "a file");
  try {
    write(5);
    ADD_FAILURE() << "was written";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(
        error.what(),
        AllOf(
            HasSubstr("checkpoint of step 5"),
            HasSubstr(checkpoints().string()),
            HasSubstr("no earlier one")));
  }
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
  EXPECT_EQ(newest_checkpoint(checkpoints()), at("000003"));
  sweep_checkpoints(checkpoints());
  EXPECT_THAT(
      names_in(checkpoints()), ElementsAre("-5", "000003", "000003-mine", "best", "notes.partial"));
}

// Written, pruned and killed at any moment: what is there is the newest that was or one later,
// whole.
TEST_F(Checkpoint, SurvivesKillsAtAnyMoment) {
  const auto seed = std::random_device()();
  std::mt19937_64 random(seed);
  std::int64_t step = 0;
  int partial = 0;
  for (int i = 0; i < (std::getenv("PARADYSE_TEST_LONG") != nullptr ? 1000 : 50); ++i) {
    int progress[2];
    ASSERT_EQ(pipe(progress), 0);
    const pid_t writer = fork();
    if (writer == 0) {
      for (std::int64_t s = step + 1;; ++s) {
        write(s, 2);
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
    const auto newest = newest_checkpoint(checkpoints());
    if (!newest) {
      ASSERT_EQ(written, 0) << "seed " << seed;
      continue;
    }
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
