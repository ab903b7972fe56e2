/* A stand-in for libnvidia-ml.so.1. Every value is a line "KEY VALUE" of the file named by FAKE_NVML_STATE, read at
 * each call: "gpus 2", "driver 550.54", "0.temperature 35". What has no line is not supported by the card.
 * With -DOLD_DRIVER, functions that came later are missing. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };

static int text(const char *key, char *out, unsigned size) {
  const char *path = getenv("FAKE_NVML_STATE");
  FILE *file = path ? fopen(path, "r") : NULL;
  char line[512];
  int status = NOT_SUPPORTED;
  size_t length = strlen(key);
  while (file && fgets(line, sizeof line, file)) {
    if (strncmp(line, key, length) == 0 && line[length] == ' ') {
      line[strcspn(line, "\n")] = 0;
      snprintf(out, size, "%s", line + length + 1);
      status = OK;
    }
  }
  if (file) fclose(file);
  return status;
}

static int number(const char *key, uint64_t *out) {
  char value[64];
  int status = text(key, value, sizeof value);
  if (status == OK) *out = strtoull(value, NULL, 0);
  return status;
}

static const char *key_of(void *device, const char *name) {
  static char key[128];
  snprintf(key, sizeof key, "%d.%s", (int)(intptr_t)device - 1, name);
  return key;
}

static int small(void *device, const char *name, unsigned *out) {
  uint64_t value;
  int status = number(key_of(device, name), &value);
  if (status == OK) *out = (unsigned)value;
  return status;
}

int nvmlInitWithFlags(unsigned flags) {
  uint64_t status = OK;
  number("init", &status);
  return (int)status;
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text("driver", out, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) {
  uint64_t value;
  int status = number("cuda", &value);
  if (status == OK) *out = (int)value;
  return status;
}
int nvmlDeviceGetCount_v2(unsigned *out) {
  uint64_t value = 0;
  number("gpus", &value);
  *out = (unsigned)value;
  return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
  unsigned status = OK;
  *out = (void *)(intptr_t)(index + 1);
  small(*out, "lost", &status);
  return (int)status;
}
int nvmlDeviceGetName(void *d, char *out, unsigned size) { return text(key_of(d, "name"), out, size); }
int nvmlDeviceGetUUID(void *d, char *out, unsigned size) { return text(key_of(d, "uuid"), out, size); }
int nvmlDeviceGetTemperature(void *d, unsigned sensor, unsigned *out) { return small(d, "temperature", out); }
int nvmlDeviceGetTemperatureThreshold(void *d, unsigned kind, unsigned *out) {
  return kind == 1 ? small(d, "temperature_slowdown", out) : NOT_SUPPORTED;
}
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *out) { return small(d, "power_limit", out); }
int nvmlDeviceGetPowerManagementDefaultLimit(void *d, unsigned *out) { return small(d, "power_default", out); }
int nvmlDeviceGetClockInfo(void *d, unsigned kind, unsigned *out) { return small(d, "clock", out); }
int nvmlDeviceGetMaxClockInfo(void *d, unsigned kind, unsigned *out) { return small(d, "clock_max", out); }
int nvmlDeviceGetApplicationsClock(void *d, unsigned kind, unsigned *out) { return small(d, "clock_application", out); }
int nvmlDeviceGetDefaultApplicationsClock(void *d, unsigned kind, unsigned *out) {
  return small(d, "clock_default", out);
}
int nvmlDeviceGetUtilizationRates(void *d, unsigned *out) {
  out[1] = 0;
  return small(d, "utilization", out);
}
int nvmlDeviceGetMemoryInfo(void *d, uint64_t *out) {
  int status = number(key_of(d, "memory_total"), &out[0]);
  if (status == OK) status = number(key_of(d, "memory_used"), &out[2]);
  out[1] = out[0] - out[2];
  return status;
}
int nvmlDeviceGetPowerUsage(void *d, unsigned *out) { return small(d, "power_usage", out); }
int nvmlDeviceGetPersistenceMode(void *d, unsigned *out) { return small(d, "persistence", out); }
int nvmlDeviceGetEccMode(void *d, unsigned *current, unsigned *pending) {
  int status = small(d, "ecc", current);
  *pending = *current;
  return status;
}
int nvmlDeviceGetTotalEccErrors(void *d, unsigned kind, unsigned counter, uint64_t *out) {
  return counter == 0 ? number(key_of(d, kind ? "ecc_uncorrected" : "ecc_corrected"), out) : NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkState(void *d, unsigned link, unsigned *out) {
  unsigned links = 0, down = 0;
  if (small(d, "links", &links) != OK || link >= links) return NOT_SUPPORTED;
  small(d, "links_down", &down);
  *out = link >= down;
  return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, uint64_t *out) { return number(key_of(d, "throttle"), out); }
#ifndef OLD_DRIVER
int nvmlDeviceGetRemappedRows(void *d, unsigned *fixed, unsigned *rows, unsigned *pending, unsigned *failed) {
  *fixed = *pending = *failed = 0;
  small(d, "rows_pending", pending);
  small(d, "rows_failed", failed);
  return small(d, "rows_uncorrectable", rows);
}
int nvmlDeviceGetCurrentClocksEventReasons(void *d, uint64_t *out) { return number(key_of(d, "throttle"), out); }
struct field { unsigned id, scope; long long time, latency; int kind, status; uint64_t value; };
int nvmlDeviceGetFieldValues(void *d, int count, struct field *fields) {
  for (int i = 0; i < count; i++)
    fields[i].status = fields[i].id == 82 ? number(key_of(d, "temperature_memory"), &fields[i].value) : NOT_SUPPORTED;
  return OK;
}
/* Xid errors: a line "1.xid 79" is one, told of once. */
struct event { void *device; uint64_t type, data; unsigned instance, compute; };
int nvmlEventSetCreate(void **out) {
  *out = (void *)1;
  return OK;
}
int nvmlDeviceRegisterEvents(void *d, uint64_t types, void *set) { return types == 8 ? OK : NOT_SUPPORTED; }
int nvmlEventSetWait_v2(void *set, struct event *out, unsigned timeout) {
  static uint64_t told[8];
  unsigned gpus = 0, xid;
  nvmlDeviceGetCount_v2(&gpus);
  for (unsigned i = 0; i < gpus && i < 8; i++) {
    void *device = (void *)(intptr_t)(i + 1);
    if (small(device, "xid", &xid) != OK || told[i] == xid) continue;
    told[i] = xid;
    *out = (struct event){device, 8, xid, 0, 0};
    return OK;
  }
  usleep(1000 * (timeout < 10 ? timeout : 10));
  return TIMEOUT;
}
struct process { unsigned pid; uint64_t memory; unsigned gpu, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *count, struct process *out) {
  unsigned pid = 0, room = *count;
  *count = small(d, "pid", &pid) == OK ? 1 : 0;
  if (*count > room) return INSUFFICIENT_SIZE;
  if (*count) out[0].pid = pid;
  return OK;
}
#endif
