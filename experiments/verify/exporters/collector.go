// A minimal OpenTelemetry Collector: an OTLP receiver, the debug exporter and an OTLP exporter.
// On Debian with golang-opentelemetry-collector-dev and golang-go:
//
//	GO111MODULE=off GOPATH=/usr/share/gocode go build -o collector collector.go
package main

import (
	"log"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/debugexporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

func factories() (otelcol.Factories, error) {
	var all otelcol.Factories
	var err error
	if all.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory()); err != nil {
		return all, err
	}
	all.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](debugexporter.NewFactory(), otlphttpexporter.NewFactory())
	all.Telemetry = otelconftelemetry.NewFactory()
	return all, err
}

func main() {
	config := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "collector", Description: "minimal collector", Version: "0"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory(), envprovider.NewFactory()},
		}},
	}
	if err := otelcol.NewCommand(config).Execute(); err != nil {
		log.Fatal(err)
	}
}
