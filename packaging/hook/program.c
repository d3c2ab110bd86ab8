/* amd-oci-hook: starts CPython with the hook's modules inside, and nothing from outside. */
#include <Python.h>
#include <stdio.h>
#include <unistd.h>

extern const struct _frozen frozen_modules[];

enum { REFUSED = 1 };

static int broken(const char *found)
{
	fprintf(stderr,
		"amd-oci-hook: expected the hook to start, found %s; install amd-cdi anew\n",
		found ? found : "no reason");
	return REFUSED;
}

/* As `python3 -IS` in a UTF-8 locale, but without a file to import. */
static PyStatus start(int argc, char **argv)
{
	PyPreConfig before;
	PyPreConfig_InitIsolatedConfig(&before);
	before.utf8_mode = 1;
	PyStatus status = Py_PreInitialize(&before);
	if (PyStatus_Exception(status))
		return status;
	PyImport_FrozenModules = frozen_modules;
	PyConfig config;
	PyConfig_InitIsolatedConfig(&config);
	config.parse_argv = 0;
	config.site_import = 0;
	/* A closed standard error must give an error instead of a signal. */
	config.install_signal_handlers = 1;
	config.module_search_paths_set = 1;
	status = PyConfig_SetBytesArgv(&config, argc, argv);
	if (!PyStatus_Exception(status))
		status = Py_InitializeFromConfig(&config);
	PyConfig_Clear(&config);
	return status;
}

int main(int argc, char **argv)
{
	PyStatus status = start(argc, argv);
	if (PyStatus_Exception(status))
		return broken(status.err_msg);
	PyObject *module = PyImport_ImportModule("ocihook.__main__");
	PyObject *result = module ? PyObject_CallMethod(module, "main", NULL) : NULL;
	if (!result || !PyLong_Check(result))
		return broken("a part that does not load");
	/* The hook buffers nothing and leaves nothing open: taking Python down would only take time. */
	_exit(PyLong_AsLong(result) == 0 ? 0 : REFUSED);
}
