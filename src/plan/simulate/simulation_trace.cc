// Spans as Trace Event Format: complete events, microseconds.
#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/simulate.h"

namespace paradyse {
namespace {

const char* category(Span::What what) {
  static const char* const names[] = {
      "forward", "recompute", "backward", "prefetch", "offload", "fetch", "step"};
  return names[static_cast<int>(what)];
}

}  // namespace

SimulationObserver SimulationTrace::observer() {
  return {
      .span =
          [this](const Span& span) {
            if (span.rank >= most_ranks_) {
              return;
            }
            const auto r = idx(span.rank);
            named_.resize(std::max(named_.size(), r + 1));
            if (!named_[r]) {
              named_[r] = true;
              add(nlohmann::json({{"name", "process_name"},
                                  {"ph", "M"},
                                  {"pid", span.rank},
                                  {"args", {{"name", "rank " + std::to_string(span.rank)}}}})
                      .dump());
              for (const auto& [tid, name] : {std::pair{0, "compute"}, {1, "communication"}}) {
                add(nlohmann::json({{"name", "thread_name"},
                                    {"ph", "M"},
                                    {"pid", span.rank},
                                    {"tid", tid},
                                    {"args", {{"name", name}}}})
                        .dump());
              }
            }
            const std::string layer =
                span.layer < 0 ? "" : "layer " + std::to_string(span.layer) + " ";
            add(nlohmann::json({{"name", layer + span.name},
                                {"cat", category(span.what)},
                                {"ph", "X"},
                                {"ts", span.begin * 1e6},
                                {"dur", (span.end - span.begin) * 1e6},
                                {"pid", span.rank},
                                {"tid", span.lane == Lane::compute ? 0 : 1}})
                    .dump());
          },
      .memory =
          [this](const MemorySample& sample) {
            if (sample.rank < most_ranks_) {
              add(nlohmann::json({{"name", "memory"},
                                  {"ph", "C"},
                                  {"ts", sample.at * 1e6},
                                  {"pid", sample.rank},
                                  {"args", {{"bytes", sample.bytes}}}})
                      .dump());
            }
          }};
}

void SimulationTrace::add(const std::string& event) {
  constexpr std::size_t kAround = 120;  // what json() adds, and a comma
  cut_ = cut_ || events_.size() + event.size() + kAround > most_bytes_;
  if (!cut_) {
    events_ += (events_.empty() ? "" : ",\n") + event;
  }
}

std::string SimulationTrace::json() const {
  return std::string(kMark) + R"("displayTimeUnit":"ms","traceEvents":[)" + "\n" + events_ +
         "\n]}\n";
}

}  // namespace paradyse
