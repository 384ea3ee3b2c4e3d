// The solver of milp.h: HiGHS 1.15 through its C interface.  The only file that sees its header;
// highs_absent.cc takes its place where the build is without it.
#include <array>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include <interfaces/highs_c_api.h>

#include "lab/grouping/milp.h"
#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

static_assert(sizeof(HighsInt) == sizeof(int));

void require(HighsInt status, const char* what) {
  if (status == kHighsStatusError) {
    throw std::runtime_error(std::string("HiGHS refuses ") + what);
  }
}

}  // namespace

bool has_milp_solver() { return true; }

std::optional<MilpAnswer> solve(
    const Milp& problem, const std::vector<double>& start, double seconds, std::uint64_t seed) {
  const std::unique_ptr<void, void (*)(void*)> highs(Highs_create(), Highs_destroy);
  require(Highs_setBoolOptionValue(highs.get(), "output_flag", 0), "output_flag");
  require(Highs_setIntOptionValue(highs.get(), "threads", 1), "threads");
  require(Highs_setStringOptionValue(highs.get(), "parallel", "off"), "parallel");
  require(Highs_setDoubleOptionValue(highs.get(), "time_limit", seconds), "time_limit");
  const auto small_seed = static_cast<HighsInt>(seed & 0x7fffffff);
  require(Highs_setIntOptionValue(highs.get(), "random_seed", small_seed), "random_seed");
  const auto columns = static_cast<HighsInt>(problem.cost.size());
  require(
      Highs_passMip(
          highs.get(),
          columns,
          static_cast<HighsInt>(problem.row_lower.size()),
          static_cast<HighsInt>(problem.term_value.size()),
          kHighsMatrixFormatRowwise,
          kHighsObjSenseMinimize,
          0,
          problem.cost.data(),
          problem.lower.data(),
          problem.upper.data(),
          problem.row_lower.data(),
          problem.row_upper.data(),
          problem.row_start.data(),
          problem.term_column.data(),
          problem.term_value.data(),
          problem.integer.data()),
      "the problem");
  if (!start.empty()) {
    require(Highs_setSolution(highs.get(), start.data(), nullptr, nullptr, nullptr), "the start");
  }
  require(Highs_run(highs.get()), "to run");

  HighsInt has_solution = kHighsSolutionStatusNone;
  require(
      Highs_getIntInfoValue(highs.get(), "primal_solution_status", &has_solution),
      "primal_solution_status");
  if (has_solution != kHighsSolutionStatusFeasible) {
    return std::nullopt;
  }
  MilpAnswer answer{.values = std::vector<double>(idx(columns))};
  require(
      Highs_getSolution(highs.get(), answer.values.data(), nullptr, nullptr, nullptr),
      "its solution");
  answer.optimal = Highs_getModelStatus(highs.get()) == kHighsModelStatusOptimal;
  require(Highs_getInt64InfoValue(highs.get(), "mip_node_count", &answer.nodes), "mip_node_count");
  return answer;
}

}  // namespace paradyse
