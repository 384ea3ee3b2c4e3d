// Sizes up to which bytes and operations are counted in 64 bits: of plan files, and of the options
// of commands.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "paradyse/plan/model.h"

namespace paradyse {

// More rows than any batch has.
inline constexpr std::int64_t kMostRows = std::int64_t{1} << 40;
inline constexpr std::int64_t kMostOfDim = std::int64_t{1} << 24;
inline constexpr std::int64_t kMostSamples = 1 << 20;  // or documents, of a batch that is planned
inline constexpr std::int64_t kMostTiles = 256;
// Pairs of rows that attend to each other, head by head and in bytes (ColossalZ keeps them), have
// to fit 64 bits: with this many pairs they do for 1,024 heads of 8 bytes.
inline constexpr double kMostPairs = 562949953421312;  // 2^49: a document of 23 million tokens

// Pairs of rows of a sample that attend to each other, in the part with most of them: the dim that
// it attends along, squared, times the others.  Of a document: its tokens, squared.
double attended_pairs(const Model& model, const DimSizes& dims);

// Why a batch of so many samples of these sizes, or of these documents, is more than can be
// counted; "": it is not.
std::string more_than_counted(const Model& model, const DimSizes& dims, std::int64_t samples);
std::string more_than_counted(const Model& model, std::span<const std::int64_t> documents);
// Throws std::invalid_argument for a document that is more than can be counted by itself, so that
// no plan can have it.  Pre: each has a token or more.
void expect_counted_alone(const Model& model, std::span<const std::int64_t> documents);

}  // namespace paradyse
