// What commands that plan a batch in groups of different sizes share: the options, the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/cli/commands.h"
#include "src/plan/simulate/batch_question.h"

namespace paradyse::cli {

struct BatchOptions {
  std::string lengths;
  std::string samples;  // of commands that plan samples, too
  std::int64_t context = 192'000;
  std::string space = "flexsp";
  std::int64_t batch = 512;
  std::string planner = "fast";
  bool exact = false;
  int ranks = 0;
  std::string memory;
  bool overlapped = false;
  std::string domain = "auto";
  std::string out;
  bool explain = false;
  bool compare = false;
  bool stream = false;
  GroupingOptions how;
};
void add_batch_options(Command& command, BatchOptions& options);

// --memory in bytes; 0: not given.  Throws std::invalid_argument for another text.
std::int64_t memory_of(const BatchOptions& options);
// What is asked for documents of these lengths.
using AskBatch = std::function<BatchQuestion(const std::vector<std::int64_t>& lengths)>;
// Reads the lengths, plans, writes the plan, prints the answer.  Returns the exit code.
int planned_batch(const BatchOptions& options, const Common& common, const AskBatch& ask);
// The same of the samples of a multi-axis model.
using AskSamples = std::function<BatchQuestion(const BatchSizes& samples)>;
int planned_samples(
    const BatchOptions& options, const Model& model, const Common& common, const AskSamples& ask);
// With --stream: of each line that is read, as it comes, the plan of its lengths; a line of JSON
// each.  What cannot be planned is {"error": why}, and makes the exit code kFailed at the end.
int streamed_batches(const BatchOptions& options, const Common& common, const AskBatch& ask);

}  // namespace paradyse::cli
