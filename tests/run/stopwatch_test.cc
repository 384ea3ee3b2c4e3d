// Times of a thread that computes in a stream are the device's, read afterwards: held against a
// device whose clock the test sets.
#include "src/run/device/stopwatch.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/session.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/check/check.h"
#include "src/run/device/data_sheet.h"
#include "src/run/device/device.h"
#include "src/run/execute/breakdown.h"
#include "src/run/execute/part_times.h"
#include "src/run/execute/trace.h"
#include "src/run/measure/measure.h"

namespace paradyse {
namespace {

// Its streams do at once what they are given, but the host learns of that only by waiting.
struct PretendedClock {
  double now_ms = 0;
  double a_record_ms = 0;  // goes by with each event
  double passed_ms = -1;   // of what the host knows that it was passed
  int waits = 0;
};
thread_local PretendedClock pretended;

struct PretendedEvent {
  double at_ms;
  bool timed;
};

class PretendedGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {c10::kPrivateUse1, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(current_); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(++made_); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return stream(std::exchange(current_, to.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeStream(const c10::Stream&) const override { wait_until(pretended.now_ms); }

  void record(
      void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag flag) const override {
    pretended.now_ms += pretended.a_record_ms;
    *event = new PretendedEvent{pretended.now_ms, flag == c10::EventFlag::BACKEND_DEFAULT};
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    const auto* of = static_cast<PretendedEvent*>(event);
    return !of->timed || of->at_ms <= pretended.passed_ms;
  }
  void synchronizeEvent(void* event) const override {
    wait_until(static_cast<PretendedEvent*>(event)->at_ms);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<PretendedEvent*>(event);
  }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
    return static_cast<PretendedEvent*>(end)->at_ms - static_cast<PretendedEvent*>(begin)->at_ms;
  }

 private:
  static c10::Stream stream(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kPrivateUse1, 0), id);
  }
  static void wait_until(double ms) {
    ++pretended.waits;
    pretended.passed_ms = std::max(pretended.passed_ms, ms);
  }
  thread_local static c10::StreamId current_;
  thread_local static c10::StreamId made_;
};
thread_local c10::StreamId PretendedGuard::current_ = 0;
thread_local c10::StreamId PretendedGuard::made_ = 0;

// The support library has a guard for this type, too: the tests here want theirs.
void register_guard() {
  static const PretendedGuard guard;
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::kPrivateUse1)].store(&guard);
}

class InAStream : public testing::Test {
 protected:
  InAStream() {
    register_guard();
    pretended = {};
    scope_.emplace(c10::Device(c10::kPrivateUse1, 0));
  }
  std::optional<DeviceScope> scope_;
};

TEST(Stopwatch, OnTheCpuIsTheSteadyClock) {
  EXPECT_FALSE(has_streams());
  Stopwatch watch;
  EXPECT_EQ(watch.seconds(), 0);
  double seconds = 0;
  for (int i = 0; i < 3; ++i) {
    const auto before = TimedMark::Clock::now();
    watch.start();
    watch.stop();
    seconds += seconds_since(before);
    EXPECT_GE(watch.seconds(), 0);
    EXPECT_LE(watch.seconds(), seconds);
  }
  EXPECT_FALSE(TimedMark::here().in_stream());
  watch.restart();
  EXPECT_EQ(watch.seconds(), 0);
}

TEST_F(InAStream, AStopwatchAddsUpTheDevicesTimeAndWaitsOnlyWhenAsked) {
  Stopwatch watch;
  for (const auto& [begin, end] : {std::pair{10.0, 25.0}, std::pair{100.0, 101.0}}) {
    pretended.now_ms = begin;
    watch.start();
    pretended.now_ms = end;
    watch.stop();
  }
  EXPECT_EQ(pretended.waits, 0);
  EXPECT_DOUBLE_EQ(watch.seconds(), 0.016);
  EXPECT_EQ(pretended.waits, 1);
  EXPECT_DOUBLE_EQ(watch.seconds(), 0.016) << "read once";
  EXPECT_EQ(pretended.waits, 1);
}

TEST_F(InAStream, ABreakdownGivesEachPartItsTimeInTheStream) {
  Breakdown breakdown;
  const auto at = [](double ms, auto does) {
    pretended.now_ms = ms;
    does();
  };
  at(0, [&] { breakdown.enter(Breakdown::other); });  // before it counts
  at(1, [&] { breakdown.restart(); });
  at(3, [&] { breakdown.enter(Breakdown::products); });
  at(8, [&] { breakdown.enter(Breakdown::attention); });
  at(9, [&] { breakdown.enter(Breakdown::between); });
  EXPECT_EQ(pretended.waits, 0);
  pretended.now_ms = 19;
  breakdown.settle();
  EXPECT_EQ(pretended.waits, 1);
  at(20, [&] { breakdown.enter(Breakdown::products); });
  at(21, [&] { breakdown.enter(Breakdown::between); });
  const auto seconds = breakdown.seconds();
  EXPECT_DOUBLE_EQ(seconds[Breakdown::other], 0.002);
  EXPECT_DOUBLE_EQ(seconds[Breakdown::products], 0.006);
  EXPECT_DOUBLE_EQ(seconds[Breakdown::attention], 0.001);
  EXPECT_DOUBLE_EQ(seconds[Breakdown::between], 0.011);
}

TEST_F(InAStream, PartTimesAreReadWhenTheMicroBatchIsOver) {
  PartTimes times;
  times.restart(2);
  const auto ran = [&](double ms, std::size_t part, PartPhase phase) {
    pretended.now_ms = ms;
    times.ran(part, phase);
  };
  ran(3, 0, PartPhase::forward);
  ran(10, 1, PartPhase::forward);
  ran(11, 0, PartPhase::backward);
  ran(13, 0, PartPhase::forward);
  EXPECT_EQ(pretended.waits, 0);
  times.restart(1);  // the next, which waits for the one before
  ran(14, 0, PartPhase::forward);
  const std::vector<PartTimes::OfMicroBatch> played = times.take();
  ASSERT_EQ(played.size(), 2U);
  EXPECT_TRUE(times.take().empty());
  EXPECT_DOUBLE_EQ(played[1].wall[0][idx(PartPhase::forward)], 0.001);
  const PartTimes::Seconds& seconds = played[0].wall;
  EXPECT_DOUBLE_EQ(seconds[0][idx(PartPhase::forward)], 0.005);
  EXPECT_DOUBLE_EQ(seconds[1][idx(PartPhase::forward)], 0.007);
  EXPECT_DOUBLE_EQ(seconds[0][idx(PartPhase::backward)], 0.001);
}

std::vector<nlohmann::json> spans(const Trace& trace) {
  std::vector<nlohmann::json> found = nlohmann::json::parse("[" + trace.events() + "]");
  std::erase_if(found, [](const nlohmann::json& event) { return event["ph"] != "X"; });
  return found;
}

// Names of the process, its threads and steps, and memory; below the limit, and said where it ends.
TEST(ATrace, NamesWhatIsInItAndStaysBelowItsLimit) {
  constexpr std::int64_t kLimit = 100000;
  const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                     ("paradyse_trace_" + std::to_string(::getpid()) + ".json");
  const auto content = [&] {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  };
  Trace trace(kLimit);
  const auto begin = Trace::Clock::now();
  for (int rank = 0; rank < 2; ++rank) {
    trace.add(rank, "layer 0 mlp linear", "forward", begin, Trace::Clock::now());
    trace.add_memory(rank, 1234);
  }
  trace.add_step(1, begin);
  EXPECT_EQ(trace.ended_after(), std::nullopt);
  trace.write(file, "paradyse train first");
  const nlohmann::json whole = nlohmann::json::parse(content());
  std::map<std::string, std::set<std::string>> names;  // by the kind of event
  for (const nlohmann::json& event : whole["traceEvents"]) {
    names[event["ph"]].insert(
        event["ph"] == "M" ? event["args"]["name"].get<std::string>()
                           : event["name"].get<std::string>());
  }
  using Names = std::set<std::string>;
  EXPECT_EQ(names["M"], (Names{"paradyse train first", "rank 0", "rank 1", "steps"}));
  EXPECT_EQ(names["C"], (Names{"memory of rank 0", "memory of rank 1"}));
  EXPECT_EQ(names["X"], (Names{"layer 0 mlp linear", "step 1"}));
  EXPECT_EQ(whole["otherData"]["dropped_spans"], 0);

  for (int step = 2; step < 300; ++step) {
    for (int i = 0; i < 10; ++i) {
      trace.add(
          1,
          "layer 999 attention ring_attention",
          "communication",
          begin,
          begin + std::chrono::years(1));
      trace.add_memory(1, std::int64_t{1} << 50);
    }
    trace.add_step(step, begin);
  }
  trace.write(file, "paradyse train first");
  const std::string text = content();
  EXPECT_LT(text.size(), kLimit);
  EXPECT_GT(text.size(), kLimit / 2);
  const nlohmann::json cut = nlohmann::json::parse(text);
  EXPECT_GT(cut["otherData"]["dropped_spans"], 0);
  std::int64_t steps = 0;
  for (const nlohmann::json& event : cut["traceEvents"]) {
    steps += event["ph"] == "X" && event["cat"] == "step" ? 1 : 0;
  }
  EXPECT_EQ(trace.ended_after(), steps);
  std::filesystem::remove(file);
}

TEST_F(InAStream, SpansOfATraceStandThereWhenItIsSettled) {
  Trace trace;
  pretended.now_ms = 5;
  const TimedMark begin = TimedMark::here();
  pretended.now_ms = 9;
  const TimedMark end = TimedMark::here();
  trace.add(3, "op", "forward", begin, end);
  trace.add(4, "another", "forward", begin, end);
  pretended.now_ms = 10;
  trace.add(3, "next", "forward", end, TimedMark::here());
  EXPECT_EQ(pretended.waits, 0);
  EXPECT_TRUE(spans(trace).empty());
  trace.settle(3);
  EXPECT_EQ(pretended.waits, 1);
  const std::vector<nlohmann::json> found = spans(trace);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0]["name"], "op");
  EXPECT_NEAR(found[0]["dur"].get<double>(), 4000, 0.01);
  EXPECT_NEAR(found[1]["ts"].get<double>() - found[0]["ts"].get<double>(), 4000, 0.01);
  EXPECT_NEAR(found[1]["dur"].get<double>(), 1000, 0.01);
}

// CPU tensors; what counts is that the thread has streams.
TEST(PlayedInAStream, APlanIsTimedWithoutAStopBetweenItsOps) {
  const CheckRequest request{.ranks = {1}, .dtypes = {Dtype::float32}};
  const CheckSubject& subject = request.subjects.front();
  const Plan plan = plan_of(request, {});
  const Model model = subject.model;
  run_local_ranks(1, {}, [&](Communicators& communicators) {
    pretended = {.a_record_ms = 1};
    const DeviceScope scope(c10::Device(c10::kPrivateUse1, 0));
    PartTimes times;
    Trace trace;
    RankSession session(communicators, model, {.trace = &trace, .part_times = &times});
    subject.fill(session.parameters());
    session.parameters().zero_gradients();
    const std::vector<Item> items = subject.items();
    session.play(plan, {.items = items}, /*backward=*/true);
    EXPECT_LE(pretended.waits, 2) << "for the micro-batch to be over, and to settle the trace";
    double sum = 0;
    const std::vector<PartTimes::OfMicroBatch> played = times.take();
    ASSERT_EQ(played.size(), 1U);
    for (const auto& part : played.front().wall) {
      EXPECT_GT(part[idx(PartPhase::forward)], 0);
      EXPECT_GT(part[idx(PartPhase::backward)], 0);
      sum += std::accumulate(part.begin(), part.end(), 0.0);
    }
    EXPECT_LE(sum, pretended.now_ms * 1e-3);
    EXPECT_FALSE(spans(trace).empty());
    for (const nlohmann::json& span : spans(trace)) {
      if (span["cat"] != "switch") {
        EXPECT_GE(span["dur"].get<double>(), 999.9) << span;
      }
    }
  });
}

TEST(DataSheet, KnowsCardsByTheirDriversName) {
  const std::optional<DataSheet> h100 = data_sheet_of("NVIDIA H100 80GB HBM3");
  ASSERT_TRUE(h100);
  EXPECT_THAT(h100->name, testing::HasSubstr("H100"));
  EXPECT_DOUBLE_EQ(h100->narrow_flops, 989.4e12);
  EXPECT_DOUBLE_EQ(h100->memory_bytes_per_second, 3.35e12);
  EXPECT_FALSE(data_sheet_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb"));
  EXPECT_FALSE(data_sheet_of(""));
}

}  // namespace
}  // namespace paradyse
