// One instruction set's kernels. Its translation unit opens a namespace, defines RS_NAME,
// kLanes, kTile (rows at once in a matrix product), kQueries and kValueVectors (queries and value
// columns at once in attention), as its registers allow, and includes this.
#include "vec.h"
#include "linear.h"
#include "rows.h"
#include "attend.h"
#include "scan.h"

static const Kernels kTable = {
    RS_NAME, linear, prepare, rms_norm, rotary, attend_scratch, attend, finish, scan,
    weigh, exp_sum,
};
