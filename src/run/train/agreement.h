// Ranks that are processes may be given different things: an old copy of the data on one machine,
// an edited configuration on another.  Before they work they compare what they were given.
//
// What is compared are names and values, where a value is what stands there or a hash of the
// contents, never where a file lies.  Ranks that are threads share all of it and compare nothing.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "paradyse/plan/config.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/weights.h"
#include "src/run/train/dataset.h"
#include "src/run/train/stored_moments.h"

namespace paradyse {

struct Given {
  std::string name;   // "optimizer.lr", "the documents of data.path"
  std::string value;  // "0.001", "XXH64 1f2e..."; for people, too
};

// All ranks throw it, with the same message.
class RanksDiffer : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// Every rank calls this.  "" where all ranks have the same items; else, on every rank the same,
// what differs and on which ranks.
std::string difference_of_ranks(const std::vector<Given>& mine, Communicator& world);

// Every process calls this.  Throws RanksDiffer unless all `ranks` processes have the same items.
void expect_same_on_ranks(const std::vector<Given>& mine, int ranks, Backend& backend);

// Of a configuration what all ranks have to have alike: all keys, but for where files lie, how
// processes find one another, and what rank 0 alone goes by.
std::vector<Given> given_by(const LoadedConfig& config);

// The contents of documents or samples.
Given given_data(const std::string& name, const Dataset& data);

// What is read of a model: its configuration, and the contents of its weights, or by which seed
// they are drawn.  Every process calls it.  Ranks that have the same file, on one machine, read
// none of it where all do, and else a part each; so a machine reads a file once.
std::vector<Given> given_model(
    const std::string& name,
    const ModelFolder& model,
    const ModelWeights& weights,
    int ranks,
    Backend& backend);

// The contents of optimizer.path.  Every process calls it, where there are several.
Given given_moments(const StoredMoments& moments, int ranks, Backend& backend);

// What the weights of a model are that adapters are trained beside: the XXH64 of their files, or
// the seed of random ones.  Every rank calls it, or every process; each rank reads a share of the
// files.
std::string frozen_fingerprint(const ModelWeights& weights, Communicator& world);
std::string frozen_fingerprint(const ModelWeights& weights, int ranks, Backend& backend);

// Costs by their fingerprint; "": there are none.
Given given_costs(const std::string& fingerprint);

// Every process calls this.  Costs that rank 0 has found, in its own output.folder, are those of
// the run: others may have none.  Throws RanksDiffer where one has found others.
void expect_same_costs(const std::string& fingerprint, int ranks, Backend& backend);

// The contents of a file; where it cannot be read, why.
Given given_file(const std::string& name, const std::filesystem::path& file);

// A hash of the contents of files, in this order, the same for equal contents wherever they lie; ""
// where all ranks have the same files.  Every rank calls this.
std::string shared_hash(const std::vector<std::filesystem::path>& files, Communicator& world);

}  // namespace paradyse
