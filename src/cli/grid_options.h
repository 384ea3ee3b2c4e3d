// What commands are told of a model and its samples: of several dims, or documents.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/program.h"
#include "paradyse/run/weights.h"
#include "src/cli/commands.h"

namespace paradyse::cli {

struct GridOptions {
  std::string model;
  const char* length_option = "--tokens";  // the command's option for the lengths of documents
  std::vector<int> mesh;
  std::int64_t batch = 1;
  std::int64_t frames = 0;
  std::int64_t tokens = 0;
  std::int64_t text = 0;
  std::int64_t sequences = 0;
  std::int64_t extra_sequences = 0;
  std::int64_t residues = 0;
  std::int64_t width = 0;
  double kv_ratio = 0;
};

void add_grid_options(Command& command, GridOptions& options);
// The same without --model.
void add_sample_options(Command& command, GridOptions& options);
// Whether an option says something of samples, and which sizes the model needs: "--frames N".
bool says_samples(const GridOptions& options);
std::string sizes_of(const Model& model);

// The model with what the options say of it, without dropout, and its samples or documents.  Throw
// std::invalid_argument naming the option: one that is missing, of another family, or not to be
// had.  `random_weights`: as open_model() takes it.
ModelFolder model_of(const GridOptions& options, bool random_weights = false);
Documents documents_of(const GridOptions& options, const Model& model, int ranks);
// Throws std::invalid_argument where the model has learned fewer positions.
void expect_positions(const GridOptions& options, const Model& model, std::int64_t tokens);
// A cluster file with at least so many devices.  Throws std::invalid_argument naming --ranks.
Cluster cluster_of(const std::string& file, int ranks);
}  // namespace paradyse::cli
