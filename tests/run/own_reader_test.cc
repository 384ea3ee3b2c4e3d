// A family of models that nobody here knows, with a reader of its files: runs train on them and
// evaluate, the same on any ranks.
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/model_folder.h"
#include "paradyse/plan/parts.h"
#include "paradyse/run/gradients.h"
#include "paradyse/run/sample_file.h"
#include "paradyse/run/train.h"
#include "src/run/data/grid_data.h"
#include "src/run/train/evaluate.h"
#include "tests/support/folder.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kSeen = 3;  // numbers of a place on a day

// Attention along the days of a map, which is to predict the next day.
Model weather(std::int64_t layers) {
  const PartShape shape{
      .hidden = 8,
      .heads = 2,
      .kv_heads = 2,
      .head_dim = 4,
      .ffn = 16,
      .activation = Activation::gelu};
  Model model{
      .name = "weather",
      .family = "weather",
      .sha256 = "of " + std::to_string(layers) + " layers",
      .streams = {{"x", {"days", "places"}, shape.hidden, "days"}},
      .parts = {},
      .causal = false,
      .initializer_range = 0.2,
      .words = {.items = "maps", .scored = "predicted numbers", .perplexity = false}};
  add_end(model, projection_part("embedding", "x", "seen", kSeen, shape));
  add_layers(
      model,
      layers,
      {attention_part("along_days", "x", "days", shape), mlp_part("mixer", "x", shape)});
  add_end(model, prediction_part("head", "x", "next", kSeen, shape));
  return model;
}

// Layers of two kinds: nobody says how many of each a smaller model would have.
void add_other_layer(Model& model) {
  const Part head = *model.parts.back().part;
  model.parts.pop_back();
  PartShape wider = model.typical_part();
  wider.ffn *= 2;
  add_layers(
      model, 1, {attention_part("along_days", "x", "days", wider), mlp_part("mixer", "x", wider)});
  add_end(model, head);
  model.sha256 = "two kinds";
}

// The maps of a file, [days, places, 3] each.  What is drawn is which way round the numbers are.
class WeatherFile : public SampleFile {
 public:
  WeatherFile(std::string file, BatchSizes sizes, std::vector<at::Tensor> maps)
      : SampleFile(std::move(file), std::move(sizes)), maps_(std::move(maps)) {}

  [[nodiscard]] Sample sample(
      std::int64_t i, std::uint64_t seed, std::uint64_t draw) const override {
    const at::Tensor map = (seed + draw) % 3 == 0 ? -maps_[idx(i)] : maps_[idx(i)];
    const std::int64_t days = map.size(0) - 1;
    return {.inputs = {{"seen", map.narrow(0, 0, days)}, {"next", map.narrow(0, 1, days)}}};
  }

 private:
  void add_content(const AddBytes& add) const override {
    for (const at::Tensor& map : maps_) {
      add({static_cast<const char*>(map.const_data_ptr()), map.nbytes()});
    }
  }

  std::vector<at::Tensor> maps_;
};

// "maps", then of each map days, places and all its numbers.
std::shared_ptr<const SampleFile> read_weather(
    const fs::path& file, const Model& model, const RunConfig::Data& /*settings*/) {
  std::ifstream stream(file);
  std::string word;
  if (!(stream >> word) || word != "maps") {
    throw std::runtime_error(file.string() + ": does not begin with 'maps'");
  }
  BatchSizes sizes;
  std::vector<at::Tensor> maps;
  std::int64_t days = 0;
  std::int64_t places = 0;
  while (stream >> days >> places) {
    const at::Tensor map = at::empty({days, places, kSeen}, at::kDouble);
    for (std::int64_t i = 0; i < map.numel(); ++i) {
      stream >> map.mutable_data_ptr<double>()[i];
    }
    maps.push_back(map);
    sizes.dims.push_back({{"days", days - 1}, {"places", places}});
    sizes.lengths.push_back(model.rows(sizes.dims.back()));
  }
  return std::make_shared<const WeatherFile>(file.string(), std::move(sizes), std::move(maps));
}

SampleReader weather_reader() {
  return {
      .family = "weather",
      .data = "maps (.map)",
      .read = read_weather,
      .why_left_out =
          [](const fs::path& file) { return file.extension() == ".map" ? "" : "no map"; },
      .notes =
          [](const SampleFiles& files, const Model& model, const RunConfig::Data& /*settings*/) {
            return std::vector<std::string>{
                std::to_string(files.size()) + " files of " + model.words.items};
          }};
}

class OwnReader : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    add_model_family(
        {.name = "weather",
         .types = {"weather"},
         .read =
             [](const std::string& json, const std::string& /*source*/) {
               Model model = weather(2);
               if (json.find("two_kinds") != std::string::npos) {
                 add_other_layer(model);
               }
               return model;
             },
         .variants = {weather(1)}});
    add_sample_reader(weather_reader());
  }
  static void TearDownTestSuite() {
    remove_sample_reader("weather");
    remove_model_family("weather");
  }

  OwnReader() {
    std::ofstream(folder_ / "model.toml") << "model_type = \"weather\"\n";
    write("b.map", {{3, 5}, {8, 3}});
    write("a.map", {{6, 2}});
    std::ofstream(data() / "README.md") << "maps\n";
  }

  void write(const std::string& name, const std::vector<std::pair<int, int>>& sizes) const {
    fs::create_directories(data());
    std::ofstream stream(data() / name);
    stream << "maps\n";
    for (const auto& [days, places] : sizes) {
      stream << days << " " << places << "\n";
      for (int i = 0; i < days * places * kSeen; ++i) {
        stream << std::sin(0.7 * i) << "\n";
      }
    }
  }

  [[nodiscard]] LoadedConfig config(const std::string& name, int ranks) const {
    return load_config(
        "",
        {"model.path=" + (folder_ / "model.toml").string(),
         "data.path=" + data().string(),
         "data.eval_path=" + data().string(),
         "output.folder=" + folder_.string(),
         "output.name=" + name,
         "train.steps=30",
         "train.tokens_per_step=20",
         "train.dtype=float64",
         "optimizer.lr=0.02",
         "costs.correct=false",
         "checkpoint.minutes=0",
         "parallel.ranks=" + std::to_string(ranks)});
  }

  [[nodiscard]] fs::path data() const { return folder_ / "data"; }
  test::Folder folder_;
};

TEST_F(OwnReader, ReadsFoldersOfFiles) {
  const Model model = weather(2);
  const GridData read = read_grid_data({data()}, model);
  EXPECT_THAT(read.sizes().lengths, ElementsAre(10, 10, 21));
  EXPECT_THAT(
      read.notes(),
      ElementsAre("2 files of maps", HasSubstr("files left out: 1 no map (README.md)")));
  EXPECT_EQ(read.place(2), std::pair(read.place(1).first, std::int64_t{1}));
  EXPECT_EQ(read.place(2).first->file(), (data() / "b.map").string());
  for (std::int64_t i = 0; i < read.size(); ++i) {
    EXPECT_NO_THROW(check_sample(read.sample(i, 1, 0), model, read.sizes().dims[idx(i)]));
  }
  const auto first = [&](std::uint64_t draw) {
    return read.sample(0, 0, draw).inputs.at("seen").whole();
  };
  EXPECT_TRUE(at::equal(first(0), -first(1)));
  const std::string before = read.fingerprint();
  EXPECT_EQ(read_grid_data({data()}, model).fingerprint(), before);
  write("a.map", {{6, 3}});
  EXPECT_NE(read_grid_data({data()}, model).fingerprint(), before);
  const auto reading = [&](const fs::path& path) { return read_grid_data({path}, model); };
  fs::create_directories(folder_ / "none");
  std::ofstream(folder_ / "none" / "x.txt") << "text";
  EXPECT_THAT(
      [&] { reading(folder_ / "none"); },
      ThrowsMessage<std::runtime_error>(HasSubstr("has no maps (.map), only 1 no map (x.txt)")));
  EXPECT_THAT(
      [&] { reading(folder_ / "none" / "x.txt"); },
      ThrowsMessage<std::runtime_error>(HasSubstr("does not begin with 'maps'")));
}

TEST_F(OwnReader, GivesTheGradientsOfOneRankOnAnyRanks) {
  const Model model = weather(2);
  const GridData read = read_grid_data({data()}, model);
  const std::vector<Sample> samples = read.samples(7);
  GradientRequest request{
      .model = model,
      .fill = [](Parameters& parameters) { parameters.initialize(3); },
      .items = items_of(samples)};
  GradientAnswer alone;
  for (const int ranks : {1, 2, 3, 4}) {
    PlanningTask task{.model = model, .ranks = ranks, .machine = {}};
    task.precision = precision_of(Dtype::float64);
    const Plan plan = batch_planner(task)->plan(read.sizes()).plan.value();
    request.plan = &plan;
    GradientAnswer answer = gradients(request);
    if (ranks == 1) {
      alone = std::move(answer);
      EXPECT_GT(alone.batch.loss, 0);
      continue;
    }
    EXPECT_NEAR(answer.batch.loss, alone.batch.loss, 1e-12);
    EXPECT_LE(compare_gradients(answer.gradients, alone.gradients).worst, 1e-10);
  }
}

TEST_F(OwnReader, IsReadByRuns) {
  double last = 0;
  for (const int ranks : {1, 2, 3}) {
    const std::string name = "on" + std::to_string(ranks);
    std::vector<std::string> notes;
    TrainHooks hooks;
    hooks.note = [&](const std::string& note) { notes.push_back(note); };
    const std::shared_ptr<Backend> backend = local_backend();
    const TrainSummary run = train(config(name, ranks), hooks, *backend);
    EXPECT_EQ(run.steps, 30);
    EXPECT_LT(run.last_loss, run.first_loss / 2);
    EXPECT_THAT(notes, testing::Contains(HasSubstr("2 files of maps")));
    if (ranks > 1) {
      EXPECT_NEAR(run.last_loss, last, 1e-10);
    }
    last = run.last_loss;
    EXPECT_TRUE(std::isfinite(run.eval_loss));
    EXPECT_EQ(evaluate(config(name, ranks), *backend).documents, 3);
  }
}

TEST_F(OwnReader, IsMeasuredByRuns) {
  for (const std::string kinds : {"", "two_kinds = true\n"}) {
    std::ofstream(folder_ / "model.toml") << "model_type = \"weather\"\n" << kinds;
    LoadedConfig measured = config(kinds.empty() ? "one" : "two", 2);
    measured.config.train.steps = 2;
    measured.config.costs.file = "measure";
    measured.config.costs.profile_seconds = 3;
    std::vector<std::string> notes;
    TrainHooks hooks;
    hooks.note = [&](const std::string& note) { notes.push_back(note); };
    EXPECT_EQ(train(measured, hooks, *local_backend()).steps, 2);
    EXPECT_FALSE(fs::is_empty(folder_ / "costs"));
  }
}

// A reader of files without content, as it may be wrong.
class Gives {
 public:
  explicit Gives(std::shared_ptr<const SampleFile> file) {
    remove_sample_reader("weather");
    SampleReader reader = weather_reader();
    reader.read = [file = std::move(file)](const fs::path&, const Model&, const RunConfig::Data&) {
      return file;
    };
    add_sample_reader(std::move(reader));
  }
  ~Gives() {
    remove_sample_reader("weather");
    add_sample_reader(weather_reader());
  }
  Gives(const Gives&) = delete;
  Gives& operator=(const Gives&) = delete;
};

TEST_F(OwnReader, IsNamedWhereWhatItGivesIsWrong) {
  const DimSizes dims = {{"days", 3}, {"places", 2}};
  const auto refused = [&](std::shared_ptr<const SampleFile> file, const char* what) {
    const Gives gives(std::move(file));
    EXPECT_THAT(
        [&] { read_grid_data({data()}, weather(2)); },
        ThrowsMessage<std::runtime_error>(
            testing::AllOf(HasSubstr("a.map: the reader of family 'weather'"), HasSubstr(what))));
  };
  const auto of = [](std::vector<std::int64_t> lengths, std::vector<DimSizes> all) {
    return std::make_shared<const WeatherFile>(
        "file",
        BatchSizes{.lengths = std::move(lengths), .dims = std::move(all)},
        std::vector<at::Tensor>());
  };
  refused(nullptr, "gives no SampleFile");
  refused(of({6, 6}, {dims}), "gives 2 lengths and 1 dims");
  refused(of({6}, {dims, dims}), "gives 1 lengths and 2 dims");
  refused(of({6, 7}, {dims, dims}), "gives sample 1 the length 7, but its dims have 6 rows");
  refused(of({3}, {{{"days", 3}}}), "gives sample 0 no dim 'places'");
}

// Hooks are of a process: one may have none that stops.
TEST_F(OwnReader, IsEvaluatedUntilAnyRankIsToStop) {
  const Model model = weather(2);
  const Dataset maps(read_grid_data({data()}, model));
  std::atomic<bool> stop = false;
  for (const bool stops : {false, true}) {
    stop = stops;
    run_local_ranks(3, {.deadline = std::chrono::seconds(20)}, [&](Communicators& communicators) {
      RankSession session(communicators, model, {.dtype = Dtype::float64, .gradients = false});
      session.parameters().initialize(3);
      PlanningTask task{.model = model, .ranks = 3, .machine = {}};
      task.precision = precision_of(Dtype::float64);
      const std::unique_ptr<BatchPlanner> planner = batch_planner(task);
      const EvalResult result =
          evaluate_data(maps, 1, 20, planner.get(), session, session.rank() == 1 ? &stop : nullptr);
      EXPECT_EQ(result.interrupted, stops);
      EXPECT_EQ(result.documents, stops ? 0 : 3);
    });
  }
}

TEST_F(OwnReader, IsRefusedWhereItIsNoneOrTheSecond) {
  const auto refused = [](SampleReader reader, const char* what) {
    EXPECT_THAT(
        [&] { add_sample_reader(std::move(reader)); },
        ThrowsMessage<std::invalid_argument>(HasSubstr(what)));
  };
  refused(weather_reader(), "family 'weather' has a reader");
  refused(
      {.family = "stdit", .data = "clips", .read = read_weather}, "family 'stdit' has a reader");
  refused({.family = "sea", .data = "tides"}, "'sea': a reader has a family, data and read");
  for (const char* family : {"sea", "evoformer"}) {
    EXPECT_THAT(
        [&] { remove_sample_reader(family); },
        ThrowsMessage<std::invalid_argument>(HasSubstr("was not added")));
  }
}

}  // namespace
}  // namespace paradyse
