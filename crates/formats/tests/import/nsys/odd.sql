-- Invalid content: negative sizes, text in number columns, unknown kinds and operations, frees
-- without allocations, addresses allocated twice, times before the start, graph memory that comes
-- and goes, and the same address in two processes.
CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER NOT NULL, globalPid INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, address INTEGER NOT NULL, bytes INTEGER NOT NULL, memKind INTEGER NOT NULL,
  memoryOperationType INTEGER NOT NULL, name TEXT, correlationId INTEGER);
INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES
  (-500, 16777216, 0, 1, 100, 10, 2, 0, NULL, 0),
  (0, 33554432, 0, 1, 100, 20, 2, 0, NULL, 0),
  (1, 16777216, 0, 1, 200, -5, 2, 0, NULL, 0),
  (2, 16777216, 0, 1, 300, 'many', 2, 0, NULL, 0),
  (3, 16777216, 0, 1, 400, 40, 77, 0, NULL, 0),
  (4, 16777216, 0, 1, 500, 50, 2, 9, NULL, 0),
  (5, 16777216, 0, 1, 600, 60, 2, 1, NULL, 0),
  (6, 16777216, 0, 1, 100, 70, 2, 0, NULL, 0),
  (7, 16777216, 0, 4294967295, 0, 80, 2, 0, NULL, 0),
  (8, 16777216, 0, 4294967295, 0, 90, 2, 0, NULL, 0),
  (9, 16777216, 0, 4294967295, 0, 80, 2, 1, NULL, 0),
  (10, 33554432, 0, 1, 100, 20, 2, 1, NULL, 0),
  (11, 33554432, 0, 0, 700, 4, 5, 0, '_ZN3fooE', 0),
  (12, 33554432, 0, 4294967295, 800, 8, 4, 0, NULL, 0),
  (12, 33554432, 0, 1, 800, 8, 4, 0, NULL, 0),
  (13, 33554432, 0, 0, 800, 8, 6, 0, 'shared', 0),
  (14, 33554432, 0, 1, 900, 9, 0, 0, NULL, 0);
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT);
