// What parts of a layer may do and what it costs: the nodes and edges of a layout graph.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/layout_planner.h"

namespace paradyse {

// Elements are means over the ranks.
struct LayoutCost {
  double forward = 0;
  double backward = 0;
  double again = 0;  // sent backward if everything were made again: decides between equals
  double seconds = 0;

  LayoutCost& operator+=(const LayoutCost& other);
};

struct PartWay {
  PartChoice choice;
  LayoutCost cost;
  std::vector<std::string> collectives;  // forward
};

// What is in no layer makes and reads streams at home, unless a batch brings what they are made of.
bool ends_at_home(const Model& model);
Placement home_of(const Stream& stream);  // on one axis

class PartWays {
 public:
  explicit PartWays(const LayoutTask& task);

  // Streams that may lie in several ways, in the model's order, and where.
  struct PlacedStream {
    std::string name;
    std::vector<Placement> places;
  };
  [[nodiscard]] const std::vector<PlacedStream>& streams() const { return streams_; }
  // Parts of a layer of each stack, in order.
  [[nodiscard]] const std::vector<std::shared_ptr<const Part>>& parts() const { return parts_; }

  // All ways of a part; empty: none builds.
  [[nodiscard]] std::vector<PartWay> all(const Part& part);
  // That of a choice; nothing, and why, where it cannot be built.
  std::optional<PartWay> way(const Part& part, PartChoice choice, std::string* why = nullptr);
  // `in_layer`: made again with its layer, where layers are made again as a whole.
  LayoutCost move(
      const std::string& stream, const Placement& from, const Placement& to, bool in_layer = true);
  [[nodiscard]] std::string collective_of(
      const std::string& stream, const Placement& from, const Placement& to) const;

 private:
  [[nodiscard]] std::vector<PartChoice> with_options(
      const Part& part, const Strategy& strategy, const PartChoice& choice) const;
  [[nodiscard]] std::vector<Placement> places_of(const Stream& stream) const;
  // `all_again`: the same with everything made again, where that matters.
  LayoutCost cost(const ScheduledPart& part, const ScheduledPart* all_again = nullptr);

  const LayoutTask& task_;
  std::vector<PlacedStream> streams_;
  std::vector<std::shared_ptr<const Part>> parts_;
};

// By the task's objective; the last part decides between equals.
double value(const LayoutTask& task, const LayoutCost& cost);

}  // namespace paradyse
